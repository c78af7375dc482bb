"""Greedy steps that skip most of a large head: the very tokens of all logits, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.native_decoders import NativeRunner, load_decoder
from support.tiny_checkpoints import tiny_checkpoint

VOCAB_SIZE = 5000
"""Above the least that is screened, and no whole number of tiles."""
HEAD = "model.embed_tokens.weight"
TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 60).tolist()


def folder(**overrides: Any) -> Path:
    return tiny_checkpoint("llama", vocab_size=VOCAB_SIZE, tie_word_embeddings=True, **overrides)


def change_head(edit: Callable[[torch.Tensor], None]) -> Callable[[str, torch.Tensor], tuple[torch.Tensor, int]]:
    def change(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if name == HEAD:
            tensor = tensor.clone()
            edit(tensor)
        return tensor, 0

    return change


def assert_greedy_is_the_argmax(decoder: Any) -> None:
    """Steps of 1, 3, 4 (screened) and 9 tokens (not), against whole logits."""
    expected = NativeRunner(decoder).run_chunked(0, TOKENS, len(TOKENS)).argmax(-1)
    assert len(set(expected.tolist())) > 3
    runner = NativeRunner(decoder)
    start, sizes = 0, [1] * 20 + [3, 4, 9, 1, 1, 4, 9, 9]
    for size in sizes:
        arrays = runner.step_arrays([(0, TOKENS[start : start + size])])
        assert decoder.greedy(**arrays).tolist() == expected[start : start + size].tolist()
        start += size
    assert start == len(TOKENS)


@pytest.mark.parametrize(
    ("weight_format", "dtype", "overrides"),
    [
        ("auto", torch.float32, {}),
        ("auto", torch.bfloat16, {}),
        ("auto", torch.float16, {"hidden_size": 320, "num_attention_heads": 4}),
        ("int8", torch.float32, {"hidden_size": 256, "num_attention_heads": 4}),
        ("int4", torch.float32, {"hidden_size": 40, "num_attention_heads": 4}),
    ],
)
def test_greedy_is_the_argmax_of_all_logits(weight_format: str, dtype: torch.dtype, overrides: dict[str, Any]) -> None:
    assert_greedy_is_the_argmax(load_decoder(folder(**overrides), weight_format, dtype))


@pytest.mark.parametrize("offset", [0.5, 1e3, 1e30])
def test_rows_with_a_large_part_in_common(offset: float) -> None:
    def edit(head: torch.Tensor) -> None:
        head += offset * torch.linspace(-1, 1, head.shape[1])

    decoder = load_decoder(folder(), "auto", change=change_head(edit))
    expected = NativeRunner(decoder).run_chunked(0, TOKENS, len(TOKENS)).argmax(-1)
    runner = NativeRunner(decoder)
    assert [runner.greedy([(0, [token])])[0] for token in TOKENS] == expected.tolist()


def test_the_first_of_equal_rows_wins() -> None:
    def edit(head: torch.Tensor) -> None:
        head[2500:] = head[:2500]

    decoder = load_decoder(folder(), "int8", change=change_head(edit))
    runner = NativeRunner(decoder)
    tokens = [runner.greedy([(0, [token])])[0] for token in TOKENS]
    assert max(tokens) < 2500


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite(value: float) -> None:
    def edit(head: torch.Tensor) -> None:
        head[4321, 3] = value

    decoder = load_decoder(folder(), "auto", change=change_head(edit))
    arrays = [NativeRunner(decoder).step_arrays([(0, [token])]) for token in TOKENS[:8]]
    for one in arrays:
        [logits] = decoder.forward(**one)
        best = -1 if np.isnan(logits).any() or np.isinf(logits.max()) else logits.argmax()
        assert decoder.greedy(**one).tolist() == [best]


def test_a_packed_file_brings_the_screen(tmp_path: Path) -> None:
    decoder = load_decoder(folder(), "int8")
    decoder.save_packed(tmp_path / "packed", "key")
    loaded = load_decoder(folder(), "int8", packed=(tmp_path / "packed", "key"))
    assert loaded.num_weight_bytes == pytest.approx(decoder.num_weight_bytes, rel=0.01)
    assert_greedy_is_the_argmax(loaded)
