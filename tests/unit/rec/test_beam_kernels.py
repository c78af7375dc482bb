"""The CPU kernels of beams: attention against numpy, choice against a full sort, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.beam_choices import assert_same_choice
from xllm_framework.rec.valid_paths import build_paths
from xllm_kernels import ops, reference
from xllm_kernels.ops.beam_select import LevelPaths

PROMPT_LENS = [1, 37, 600]
WIDTHS = [3, 1, 40]
BLOCK_SIZE = 16


def attention_arguments(head_dim: int, num_heads: int, num_kv_heads: int, num_rounds: int, seed: int = 0):
    random = np.random.default_rng(seed)
    num_rows = sum(WIDTHS)
    num_blocks = [-(-length // BLOCK_SIZE) for length in PROMPT_LENS]
    ids = random.permutation(np.arange(1, sum(num_blocks) + 1)).astype(np.int32)
    tables = np.full((len(PROMPT_LENS), max(num_blocks)), -7, np.int32)
    for row, (count, end) in enumerate(zip(num_blocks, np.cumsum(num_blocks), strict=True)):
        tables[row, :count] = ids[end - count : end]
    cache_shape = (sum(num_blocks) + 1, BLOCK_SIZE, num_kv_heads, head_dim)
    beam_shape = (num_rounds + 1, num_rows + 2, num_kv_heads, head_dim)

    def floats(*shape: int):
        return random.standard_normal(shape, dtype=np.float32)

    ancestors = random.integers(0, num_rows + 2, (num_rows, num_rounds)).astype(np.int32)
    return (
        floats(num_rows, num_heads, head_dim),
        floats(*cache_shape),
        floats(*cache_shape),
        tables,
        np.concatenate([[0], np.cumsum(WIDTHS)]).astype(np.int32),
        np.array(PROMPT_LENS, np.int32),
        floats(*beam_shape),
        floats(*beam_shape),
        ancestors,
        head_dim**-0.5,
    )


@pytest.mark.parametrize(("head_dim", "num_heads", "num_kv_heads"), [(64, 4, 2), (128, 8, 1), (20, 3, 3)])
@pytest.mark.parametrize("num_rounds", [1, 4])
def test_attention_equals_one_softmax_over_the_path(head_dim: int, num_heads: int, num_kv_heads: int, num_rounds: int):
    arguments = attention_arguments(head_dim, num_heads, num_kv_heads, num_rounds)
    np.testing.assert_allclose(ops.beam_attention(*arguments), reference.beam_attention(*arguments), rtol=0, atol=2e-6)


def test_a_beams_bits_do_not_depend_on_the_others():
    query, keys, values, tables, start, lens, beam_keys, beam_values, ancestors, scale = attention_arguments(
        64, 4, 2, 3
    )
    together = ops.beam_attention(query, keys, values, tables, start, lens, beam_keys, beam_values, ancestors, scale)
    for row in (0, 3, 20, len(query) - 1):
        search = int(np.searchsorted(start, row, side="right")) - 1
        alone = ops.beam_attention(
            query[row : row + 1],
            keys,
            values,
            tables[search : search + 1],
            np.array([0, 1], np.int32),
            lens[search : search + 1],
            beam_keys,
            beam_values,
            ancestors[row : row + 1],
            scale,
        )
        assert alone[0].tobytes() == together[row].tobytes()


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (3, np.full((3, 38), 1000, np.int32), "block_tables"),
        (4, np.array([0, 3, 2, 44], np.int32), "query_start"),
        (5, np.array([0, 37, 600], np.int32), "prompt_lens"),
        (8, np.full((44, 2), 46, np.int32), "ancestors"),
        (8, np.zeros((44, 9), np.int32), "ancestors"),
    ],
)
def test_wrong_attention_arguments_are_named(position: int, wrong: np.ndarray, message: str):
    arguments = list(attention_arguments(64, 4, 2, 2))
    arguments[position] = wrong
    with pytest.raises(ValueError, match=message):
        ops.beam_attention(*arguments)


@st.composite
def choices(draw: st.DrawFn, *, has_equal_rows: bool = False):
    """Draw logits with many equal values, so that ties abound.

    Equal rows have the very same log-probabilities, and scores between which no difference of logits lies: there, every
    tie is one to the last bit.
    """
    num_requests, vocab_size = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    rows = draw(st.lists(st.integers(0, 4), min_size=num_requests, max_size=num_requests))
    widths = draw(st.lists(st.integers(1, 9), min_size=num_requests, max_size=num_requests))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = random.integers(0, 3, (1 if has_equal_rows else sum(rows), vocab_size)).astype(np.float32)
    logits = np.ascontiguousarray(np.broadcast_to(logits, (sum(rows), vocab_size)))
    scores = random.choice(np.array([0.0, -0.3 if has_equal_rows else -1.0, -np.inf], np.float32), sum(rows))
    is_free = draw(st.booleans())
    tokens = random.integers(0, vocab_size, (20, 2)).astype(np.int32)
    paths, _ = build_paths(tokens)
    nodes = random.integers(-1, len(paths.starts[1]) - 1, sum(rows)).astype(np.int32)
    level = None if is_free else LevelPaths(paths.starts[1], paths.tokens[1])
    return (
        logits,
        scores,
        nodes,
        level,
        np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
        np.concatenate([[0], np.cumsum(widths)]).astype(np.int32),
    )


@given(arguments=choices())
@settings(deadline=None, max_examples=80)
def test_the_choice_equals_a_full_sort(arguments: tuple):
    assert_same_choice(ops.beam_select(*arguments), reference.beam_select(*arguments), arguments[-1])


@given(arguments=choices(has_equal_rows=True))
@settings(deadline=None, max_examples=80)
def test_ties_go_to_the_better_row_and_the_smaller_token(arguments: tuple):
    chosen, expected = ops.beam_select(*arguments), reference.beam_select(*arguments)
    assert chosen.parents.tolist() == expected.parents.tolist()
    assert chosen.token_ids.tolist() == expected.token_ids.tolist()
    assert chosen.nodes.tolist() == expected.nodes.tolist()
    np.testing.assert_allclose(chosen.logprobs, expected.logprobs, atol=1e-6)


def test_many_candidates_and_a_large_vocabulary():
    random = np.random.default_rng(1)
    logits = random.standard_normal((24, 9_000), dtype=np.float32) * 5
    scores = -np.arange(24, dtype=np.float32)
    arguments = logits, scores, np.zeros(24, np.int32), None, np.array([0, 24], np.int32), np.array([0, 512], np.int32)
    assert_same_choice(ops.beam_select(*arguments), reference.beam_select(*arguments), arguments[-1])


def test_what_is_not_a_number_is_never_chosen():
    logits = np.array([[0.0, np.nan, 1.0]], np.float32)
    none = ops.beam_select(
        logits,
        np.zeros(1, np.float32),
        np.zeros(1, np.int32),
        None,
        np.array([0, 1], np.int32),
        np.array([0, 2], np.int32),
    )
    assert none.scores.tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (1, np.zeros(3, np.float32), "scores"),
        (2, np.array([0, 9], np.int32), "nodes"),
        (3, LevelPaths(np.array([0, 2], np.int32), np.array([0, 9], np.int32)), "tokens"),
        (3, LevelPaths(np.array([0, 3], np.int32), np.array([0, 1], np.int32)), "starts"),
        (4, np.array([0, 1], np.int32), "row_start"),
    ],
)
def test_wrong_choice_arguments_are_named(position: int, wrong: object, message: str):
    arguments: list = [
        np.zeros((2, 4), np.float32),
        np.zeros(2, np.float32),
        np.zeros(2, np.int32),
        LevelPaths(np.array([0, 2], np.int32), np.array([0, 3], np.int32)),
        np.array([0, 2], np.int32),
        np.array([0, 3], np.int32),
    ]
    ops.beam_select(*arguments)
    arguments[position] = wrong
    with pytest.raises(ValueError, match=message):
        ops.beam_select(*arguments)
