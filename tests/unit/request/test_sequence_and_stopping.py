"""A sequence grows by appending and ends by its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xllm_framework.request import FinishReason, SamplingParams, Sequence, StoppingChecker

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=200)


@given(prompt=TOKENS, output=TOKENS, reserve=st.integers(0, 5))
def test_tokens_are_prompt_then_output(prompt: list[int], output: list[int], reserve: int) -> None:
    sequence = Sequence("r", 0, prompt, reserve)
    for token_id in output:
        sequence.append(token_id)
        assert sequence.last_token_id == token_id
    np.testing.assert_array_equal(sequence.token_ids, prompt + output)
    np.testing.assert_array_equal(sequence.prompt_token_ids, prompt)
    np.testing.assert_array_equal(sequence.output_token_ids, output)
    assert sequence.num_uncomputed_tokens == len(prompt) + len(output)


def grown(*output: int, prompt: tuple[int, ...] = (1, 2)) -> Sequence:
    sequence = Sequence("r", 0, prompt)
    for token_id in output:
        sequence.append(token_id)
    return sequence


CHECKER = StoppingChecker(eos_token_ids=(0, 9), max_model_len=8)


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ((5,), SamplingParams(), None),
        ((5, 9), SamplingParams(), (FinishReason.STOP, 9)),
        ((5, 9), SamplingParams(ignore_eos=True), None),
        ((5, 7), SamplingParams(stop_token_ids=(7,)), (FinishReason.STOP, 7)),
        ((5, 7), SamplingParams(stop_token_ids=(7,), ignore_eos=True), (FinishReason.STOP, 7)),
        ((5, 9), SamplingParams(min_tokens=3), None),
        ((5, 5, 9), SamplingParams(min_tokens=3), (FinishReason.STOP, 9)),
        ((5, 5), SamplingParams(max_tokens=2), (FinishReason.LENGTH, None)),
        ((5, 9), SamplingParams(max_tokens=2), (FinishReason.STOP, 9)),
        ((5,) * 6, SamplingParams(), (FinishReason.LENGTH, None)),
        ((), SamplingParams(max_tokens=0), (FinishReason.LENGTH, None)),
    ],
)
def test_stopping(output: tuple[int, ...], params: SamplingParams, expected: object) -> None:
    assert CHECKER.check(grown(*output), params) == expected


def test_an_end_token_in_the_prompt_does_not_stop() -> None:
    assert CHECKER.check(grown(prompt=(1, 9)), SamplingParams()) is None
