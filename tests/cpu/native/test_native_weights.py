"""Packed weights: every kind of GGUF against its dequantised numbers, row order, and the packed file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType

from support.native_decoders import NativeRunner, load_decoder
from support.tiny_checkpoints import tiny_checkpoint
from xllm_kernels.native import DecoderShape, LlamaDecoder

HIDDEN, INNER, VOCAB = 256, 512, 300
SHAPE = DecoderShape(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    rotary_dim=64,
    rms_norm_eps=1e-6,
    has_tied_embeddings=False,
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    has_qk_norm=False,
    sliding_windows=[0],
)
MATRICES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "lm_head.weight": (VOCAB, HIDDEN),
    "model.layers.0.self_attn.q_proj.weight": (256, HIDDEN),
    "model.layers.0.self_attn.k_proj.weight": (128, HIDDEN),
    "model.layers.0.self_attn.v_proj.weight": (128, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, 256),
    "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
}
VECTORS = (
    "model.norm.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.post_attention_layernorm.weight",
)
SCALES = {
    "Q4_0": 1e-2,
    "Q4_1": 1e-2,
    "Q5_0": 5e-3,
    "Q5_1": 5e-3,
    "Q8_0": 6e-4,
    "Q4_K": 2e-4,
    "Q5_K": 1e-4,
    "Q6_K": 3e-5,
}
"""Such that weights are of the size of 0.05."""
KINDS = tuple(SCALES)
TOKENS = list(range(0, 300, 6))


def random_blocks(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return random quants under small scales; every bit pattern of quants and of integer scales occurs."""
    values, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // values, size), np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for place in places:
        scales = rng.uniform(0.5, 1.5, len(blocks)) * SCALES[kind]
        blocks[:, place : place + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def build(tensors: dict[str, tuple[str, npt.NDArray[np.uint8]]], weight_format: Any = "auto") -> LlamaDecoder:
    angles = np.outer(np.arange(64), 0.7 ** np.arange(32)).astype(np.float32)
    decoder = LlamaDecoder(SHAPE, np.concatenate((np.cos(angles), np.sin(angles)), 1), weight_format)
    for name, (kind, content) in tensors.items():
        decoder.set_weight(name, content, kind, MATRICES.get(name, (HIDDEN,)))
    decoder.finish()
    return decoder


def norms() -> dict[str, tuple[str, npt.NDArray[np.uint8]]]:
    return {name: ("F32", np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32).view(np.uint8)) for name in VECTORS}


def logits(decoder: LlamaDecoder) -> npt.NDArray[np.float32]:
    return NativeRunner(decoder).run_chunked(0, TOKENS, 50)


def relative_error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_kind_is_its_dequantised_numbers(kind: str) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    blocks = {name: random_blocks(kind, shape, rng) for name, shape in MATRICES.items()}
    quantised = norms() | {name: (kind, content) for name, content in blocks.items()}
    values = {
        name: gguf.quants.dequantize(content.reshape(MATRICES[name][0], -1), GGMLQuantizationType[kind])
        for name, content in blocks.items()
    }
    floats = norms() | {name: ("F32", value.reshape(-1).view(np.uint8)) for name, value in values.items()}
    expected = logits(build(floats))
    # Dequantised by us: the same numbers to the last bit of a sum.
    assert relative_error(logits(build(quantised, "f32")), expected) < 1e-6
    # Multiplied in integers: what is lost is the rounding of inputs to int8, and of K-quants' scales to float16.
    assert 0 < relative_error(logits(build(quantised)), expected) < 0.02


@pytest.mark.parametrize(("weight_format", "tolerance"), [("bf16", 0.01), ("int8", 0.04), ("int4", 0.4)])
def test_float_weights_are_quantised_on_the_fly(weight_format: str, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    tensors = norms() | {
        name: ("F32", (rng.standard_normal(rows * columns) * 0.05).astype(np.float32).view(np.uint8))
        for name, (rows, columns) in MATRICES.items()
    }
    expected = logits(build(tensors))
    assert relative_error(logits(build(tensors, weight_format)), expected) < tolerance


def test_kinds_may_differ_within_a_layer() -> None:
    rng = np.random.default_rng(1)
    kinds = [*KINDS, "F32"]
    tensors, floats = norms(), norms()
    for kind, (name, shape) in zip(kinds, MATRICES.items(), strict=True):
        if kind == "F32":
            content = (rng.standard_normal(shape[0] * shape[1]) * 0.05).astype(np.float32).view(np.uint8)
            tensors[name] = floats[name] = (kind, content)
            continue
        content = random_blocks(kind, shape, rng)
        values = gguf.quants.dequantize(content.reshape(shape[0], -1), GGMLQuantizationType[kind])
        tensors[name], floats[name] = (kind, content), ("F32", values.reshape(-1).view(np.uint8))
    assert relative_error(logits(build(tensors)), logits(build(floats))) < 0.02


def test_permuted_heads_go_back_to_the_half_split_order() -> None:
    folder = tiny_checkpoint("llama", attention_bias=True)
    expected = NativeRunner(load_decoder(folder)).run_chunked(0, list(range(40)), 40)

    def interleave(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        heads = 4 if ".q_proj." in name else 2 if ".k_proj." in name else 0
        if not heads:
            return tensor, 0
        rows = tensor.reshape(heads, 2, len(tensor) // heads // 2, -1).swapaxes(1, 2)
        return rows.reshape(tensor.shape).contiguous(), heads

    decoder = load_decoder(folder, change=interleave)
    assert np.array_equal(NativeRunner(decoder).run_chunked(0, list(range(40)), 40), expected)


@pytest.mark.parametrize("weight_format", ["auto", "bf16", "int8", "int4"])
def test_packed_weights_come_back_from_their_file(weight_format: str, tmp_path: Path) -> None:
    folder, path = tiny_checkpoint("qwen3"), tmp_path / "packed"
    decoder = load_decoder(folder, weight_format)
    decoder.save_packed(path, "source 1")
    assert list(tmp_path.iterdir()) == [path]
    loaded = load_decoder(folder, weight_format, packed=(path, "source 1"))
    tokens = list(range(30))
    assert np.array_equal(
        NativeRunner(loaded).run_chunked(0, tokens, 30), NativeRunner(decoder).run_chunked(0, tokens, 30)
    )


def test_a_packed_file_of_something_else_or_a_cut_one_is_not_taken(tmp_path: Path) -> None:
    folder, path = tiny_checkpoint("qwen3"), tmp_path / "packed"
    decoder = load_decoder(folder)
    decoder.save_packed(path, "source 1")
    shape, content = decoder.shape, path.read_bytes()
    angles = np.zeros((8, shape.rotary_dim), np.float32)
    assert not LlamaDecoder(shape, angles).load_packed(path, "source 2")
    assert not LlamaDecoder(shape, angles, "int8").load_packed(path, "source 1")
    assert not LlamaDecoder(shape, angles).load_packed(tmp_path / "missing", "source 1")
    for size in (0, 5, 30, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert not LlamaDecoder(shape, angles).load_packed(path, "source 1")
    path.write_bytes(content)
    assert LlamaDecoder(shape, angles).load_packed(path, "source 1")
    with pytest.raises(OSError, match="cannot be written"):
        decoder.save_packed(tmp_path / "no such folder" / "packed", "source 1")
