"""Everything that does not fit is a ValueError or TypeError that names it, and the decoder still works afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.native_decoders import NativeRunner, load_decoder
from support.tiny_checkpoints import tiny_checkpoint
from xllm_kernels.native import DecoderShape, LlamaDecoder

SHAPE = DecoderShape(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    rotary_dim=8,
    rms_norm_eps=1e-6,
    has_tied_embeddings=True,
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    has_qk_norm=False,
    sliding_windows=[0],
)
ANGLES = np.zeros((32, 8), np.float32)
NAME = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", np.array([1, 264], np.int32), r"token_ids\[1\] is 264"),
        ("token_ids", np.array([1, -1], np.int32), r"token_ids\[1\] is -1"),
        ("positions", np.array([0, 256], np.int32), r"positions\[1\]"),
        ("positions", np.array([0], np.int32), "positions"),
        ("slot_mapping", np.array([0, 10**9], np.int64), "slot_mapping"),
        ("query_start", np.array([1, 2], np.int32), "query_start"),
        ("query_start", np.array([0, 3], np.int32), "seq_lens"),
        ("query_start", np.array([0, 1], np.int32), "query_start"),
        ("query_start", np.array([0, -5], np.int32), "query_start"),
        ("seq_lens", np.array([1], np.int32), "seq_lens"),
        ("seq_lens", np.array([17], np.int32), "columns of block_tables"),
        ("block_tables", np.array([[160]], np.int32), "block_tables"),
        ("block_tables", np.array([[-1]], np.int32), "block_tables"),
        ("rows", np.array([2], np.int64), "rows"),
        ("rows", np.array([-1], np.int64), "rows"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(name: str, value: Any, message: str) -> None:
    decoder = load_decoder(tiny_checkpoint("llama"))
    runner = NativeRunner(decoder)
    arrays = runner.step_arrays([(0, [1, 2])])
    expected = decoder.forward(**arrays)
    with pytest.raises(ValueError, match=message):
        decoder.forward(**{**arrays, name: value})
    with pytest.raises(ValueError, match=message):
        decoder.greedy(**{**arrays, name: value})
    assert np.array_equal(decoder.forward(**arrays), expected)


def test_wrong_types_are_refused() -> None:
    decoder = load_decoder(tiny_checkpoint("llama"))
    arrays = NativeRunner(decoder).step_arrays([(0, [1, 2])])
    for name, array in arrays.items():
        with pytest.raises(TypeError, match=name):
            decoder.forward(**{**arrays, name: array.astype(np.float32)})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("hidden_size", -1),
        ("num_heads", 1 << 40),
        ("num_kv_heads", 3),
        ("head_dim", 7),
        ("rotary_dim", 10),
        ("rms_norm_eps", -1.0),
        ("sliding_windows", []),
        ("sliding_windows", [-1]),
    ],
)
def test_a_shape_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        LlamaDecoder(replace(SHAPE, **{field: value}), ANGLES)


def test_an_unknown_weight_format_or_table_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_format"):
        LlamaDecoder(SHAPE, ANGLES, "fp4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cos_sin_cache"):
        LlamaDecoder(SHAPE, ANGLES[:, :6])


@pytest.mark.parametrize(
    ("name", "num_bytes", "kind", "shape", "heads", "message"),
    [
        ("model.nothing.weight", 4, "F32", (1,), 0, "model.nothing.weight"),
        (NAME, 4 * 256, "F32", (16, 16, 1), 0, NAME),
        (NAME, 4 * 256, "F32", (8, 32), 0, NAME),
        (NAME, 4 * 256 - 1, "F32", (16, 16), 0, "1023 bytes"),
        (NAME, 4 * 256, "IQ4_XS", (16, 16), 0, "IQ4_XS"),
        (NAME, 144, "Q4_K", (16, 16), 0, "blocks of 256"),
        (NAME, 4 * 256, "F32", (16, 16), 3, "3 permuted heads"),
        (NAME, 4 * 256, "F32", (16, 16), -1, "permuted heads"),
        ("model.norm.weight", 34, "Q8_0", (16,), 0, "model.norm.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(
    name: str, num_bytes: int, kind: str, shape: tuple[int, ...], heads: int, message: str
) -> None:
    decoder = LlamaDecoder(SHAPE, ANGLES)
    with pytest.raises(ValueError, match=message):
        decoder.set_weight(name, bytes(num_bytes), kind, shape, permuted_heads=heads)


def test_missing_and_repeated_tensors_are_named() -> None:
    decoder = LlamaDecoder(SHAPE, ANGLES)
    decoder.set_weight("model.norm.weight", bytes(64), "F32", (16,))
    with pytest.raises(ValueError, match="twice"):
        decoder.set_weight("model.norm.weight", bytes(64), "F32", (16,))
    with pytest.raises(ValueError, match=r"model\.embed_tokens\.weight.* more"):
        decoder.finish()


def test_steps_before_weights_or_cache_and_bad_caches_are_refused() -> None:
    arrays = NativeRunner(load_decoder(tiny_checkpoint("llama"))).step_arrays([(0, [1])])
    with pytest.raises(ValueError, match="finish"):
        LlamaDecoder(SHAPE, ANGLES).forward(**arrays)
    decoder = load_decoder(tiny_checkpoint("llama"))
    with pytest.raises(ValueError, match="allocate_kv_cache"):
        decoder.forward(**arrays)
    for blocks, size, dtype in ((0, 16, "f32"), (1, 0, "f32"), (1, 16, "fp8"), (2**31 - 1, 2**31 - 1, "f32")):
        with pytest.raises(ValueError, match=r"."):
            decoder.allocate_kv_cache(blocks, size, dtype)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        decoder.allocate_kv_cache(2**31 - 1, 1 << 20)
