"""Steps of the native decoder with embeddings and rotary rows of their own: the same ones as its own change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.loaded_models import model_files
from support.native_decoders import load_decoder
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.model import load_model_args
from xllm_kernels.native import LlamaDecoder
from xllm_runtime.layers.rope_frequencies import cos_sin_table
from xllm_runtime.weights import load_weights

NUM_TOKENS, BLOCK_SIZE = 600, 16
"""More than pass through the layers together."""
GENERATOR = np.random.default_rng(0)
TOKENS = GENERATOR.integers(0, 256, NUM_TOKENS).astype(np.int32)
BLOCKS = np.arange(1, 1 + -(-NUM_TOKENS // BLOCK_SIZE), dtype=np.int32)
POSITIONS = np.arange(NUM_TOKENS, dtype=np.int32)
STEP: tuple[Any, ...] = (
    TOKENS,
    POSITIONS,
    (BLOCKS[POSITIONS // BLOCK_SIZE] * BLOCK_SIZE + POSITIONS % BLOCK_SIZE).astype(np.int64),
    np.array([0, NUM_TOKENS], np.int32),
    np.array([NUM_TOKENS], np.int32),
    BLOCKS[None],
    np.arange(NUM_TOKENS),
)
GIVEN = np.arange(3, NUM_TOKENS, 2)
ROWS = np.full(NUM_TOKENS, -1, np.int32)
ROWS[GIVEN] = np.arange(len(GIVEN))


@pytest.fixture(scope="module")
def loaded() -> tuple[LlamaDecoder, np.ndarray, np.ndarray]:
    folder = tiny_checkpoint("qwen3", max_position_embeddings=1024)
    decoder = load_decoder(folder)
    decoder.allocate_kv_cache(len(BLOCKS) + 1, BLOCK_SIZE, "f32")
    files = model_files(folder)
    args = load_model_args(files)
    table = next(tensor for name, tensor in load_weights(files, args, None) if "embed_tokens" in name)  # type: ignore[arg-type]
    return decoder, table.float().numpy()[TOKENS[GIVEN]], cos_sin_table(args, NUM_TOKENS)


def test_its_own_embeddings_and_angles_change_nothing(loaded: Any) -> None:
    decoder, own, table = loaded
    expected = decoder.hidden(*STEP)
    found = decoder.hidden_embedded(*STEP, embedded=own[:, None], embedded_rows=ROWS)
    np.testing.assert_array_equal(found, expected)
    order = GENERATOR.permutation(NUM_TOKENS)
    positions = np.empty(NUM_TOKENS, np.int32)
    positions[order] = POSITIONS
    angles = np.ascontiguousarray(table[order])
    step = (STEP[0], positions, *STEP[2:])
    found = decoder.hidden_embedded(*step, embedded=own[:, None], embedded_rows=ROWS, angles=angles)
    np.testing.assert_array_equal(found, expected)


def test_later_levels_are_added_where_there_are_embeddings(loaded: Any) -> None:
    decoder, own, _ = loaded
    expected = decoder.hidden_embedded(*STEP, embedded=own[:, None], embedded_rows=ROWS)
    levels = np.stack((own, np.zeros_like(own), np.zeros_like(own)), 1)
    np.testing.assert_array_equal(decoder.hidden_embedded(*STEP, embedded=levels, embedded_rows=ROWS), expected)
    levels[:, 1] = 1.0
    found = decoder.hidden_embedded(*STEP, embedded=levels, embedded_rows=ROWS)
    np.testing.assert_array_equal(found[:3], expected[:3])
    assert (np.abs(found[3:] - expected[3:]).max(1) > 1e-3).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"embedded_rows": ROWS + 1}, "embedded_rows"),
        ({"embedded_rows": ROWS[:-1]}, "embedded_rows"),
        ({"embedded": np.zeros((len(GIVEN), 1, 63), np.float32)}, "hidden_size"),
        ({"embedded": np.zeros((len(GIVEN), 64), np.float32)}, "embedded"),
        ({"angles": np.zeros((NUM_TOKENS, 2), np.float32)}, "rotary_dim"),
        ({"angles": np.zeros((3, 128), np.float32)}, "rows of angles"),
    ],
)
def test_what_does_not_fit_is_refused(loaded: Any, changed: dict[str, Any], words: str) -> None:
    decoder, own, _ = loaded
    fields = {"embedded": own[:, None], "embedded_rows": ROWS, **changed}
    with pytest.raises(ValueError, match=words):
        decoder.hidden_embedded(*STEP, **fields)
