"""The native decoder against the python implementation and against itself: families, chunks, neighbours, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.loaded_models import load_tiny
from support.native_decoders import NativeRunner, load_decoder
from support.paged_runner import PagedRunner
from support.tiny_checkpoints import tiny_checkpoint
from xllm_kernels import get_num_threads, set_num_threads

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 6, "intermediate_size": 75}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("mistral", {"sliding_window": 9}),
]
FORMATS = [
    ("auto", torch.float32),
    ("auto", torch.float16),
    ("auto", torch.bfloat16),
    ("int8", torch.float32),
    ("int4", torch.float32),
]
TOKENS = np.random.default_rng(0).integers(0, 256, 75).tolist()


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = get_num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.mark.parametrize(("family", "overrides"), FAMILIES)
def test_float32_logits_are_those_of_the_python_implementation(family: str, overrides: dict[str, Any]) -> None:
    folder = tiny_checkpoint(family, **overrides)
    expected = PagedRunner(load_tiny(folder, "python")).run_chunked(0, TOKENS, len(TOKENS)).numpy()
    found = NativeRunner(load_decoder(folder)).run_chunked(0, TOKENS, len(TOKENS))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("weight_format", "dtype"), FORMATS)
@pytest.mark.parametrize(("family", "overrides"), [FAMILIES[1], FAMILIES[5], FAMILIES[6]])
def test_bits_do_not_depend_on_chunks_neighbours_or_threads(
    family: str, overrides: dict[str, Any], weight_format: str, dtype: torch.dtype, threads: int
) -> None:
    decoder = load_decoder(tiny_checkpoint(family, **overrides), weight_format, dtype)
    whole = NativeRunner(decoder).run_chunked(0, TOKENS, len(TOKENS))
    for chunk in (1, 2, 7, 33):
        assert np.array_equal(NativeRunner(decoder).run_chunked(0, TOKENS, chunk), whole), chunk
    runner = NativeRunner(decoder, block_size=4, num_blocks=600)
    runner.step([(s, TOKENS[s : 40 + s]) for s in range(1, 9)] + [(0, TOKENS[:50])])
    for position in range(50, len(TOKENS)):
        mixed = runner.step([(3, TOKENS[:3]), (0, TOKENS[position : position + 1]), (5, TOKENS[4:5])])
        assert np.array_equal(mixed[1][0], whole[position])


def test_one_and_two_threads_give_the_same_bits() -> None:
    decoder = load_decoder(tiny_checkpoint("qwen3"), "int8")
    before = get_num_threads()
    results = []
    for num_threads in (1, 2):
        set_num_threads(num_threads)
        results.append(NativeRunner(decoder).run_chunked(0, TOKENS, 25))
    set_num_threads(before)
    assert np.array_equal(*results)


@pytest.mark.parametrize("cache_dtype", ["f32", "bf16"])
def test_greedy_tokens_are_the_same_alone_and_among_32(cache_dtype: str) -> None:
    decoder = load_decoder(tiny_checkpoint("llama"), "auto", torch.bfloat16)
    prompts = [TOKENS[s : s + 5 + s] for s in range(32)]

    def generate(sequences: list[int]) -> list[list[int]]:
        runner = NativeRunner(decoder, num_blocks=400, dtype=cache_dtype)
        last = runner.greedy([(s, prompts[s]) for s in sequences])
        texts = [[token] for token in last]
        for _ in range(9):
            last = runner.greedy([(s, [token]) for s, token in zip(sequences, last, strict=True)])
            for text, token in zip(texts, last, strict=True):
                text.append(token)
        return texts

    together = generate(list(range(32)))
    assert [generate([s])[0] for s in (0, 13, 31)] == [together[s] for s in (0, 13, 31)]
    assert len({tuple(text) for text in together}) > 8


def test_greedy_is_the_argmax_of_the_logits() -> None:
    decoder = load_decoder(tiny_checkpoint("llama"))
    arrays = NativeRunner(decoder).step_arrays([(0, TOKENS)])
    assert np.array_equal(decoder.greedy(**arrays), decoder.forward(**arrays).argmax(-1))


def test_rows_may_come_in_any_order_and_twice() -> None:
    decoder = load_decoder(tiny_checkpoint("llama"))
    arrays = NativeRunner(decoder).step_arrays([(0, TOKENS)])
    every = decoder.forward(**arrays)
    arrays["rows"] = np.array([70, 3, 3, 0], np.int64)
    assert np.array_equal(decoder.forward(**arrays), every[[70, 3, 3, 0]])
    arrays["rows"] = np.zeros(0, np.int64)
    assert decoder.forward(**arrays).shape == (0, 264)


def test_a_step_longer_than_the_internal_pieces_is_cut_without_a_trace() -> None:
    folder = tiny_checkpoint("llama", max_position_embeddings=2048)
    decoder = load_decoder(folder, "int8")
    tokens = (TOKENS * 16)[:1100]
    whole = NativeRunner(decoder, num_blocks=300).run_chunked(0, tokens, 1100)
    assert np.array_equal(NativeRunner(decoder, num_blocks=300).run_chunked(0, tokens, 300), whole)


def test_a_row_that_is_not_finite_has_no_greedy_token() -> None:
    folder = tiny_checkpoint("llama")
    decoder = load_decoder(folder, "int8", broken={"model.norm.weight": np.nan})
    arrays = NativeRunner(decoder).step_arrays([(0, TOKENS[:3])])
    assert decoder.greedy(**arrays).tolist() == [-1, -1, -1]
