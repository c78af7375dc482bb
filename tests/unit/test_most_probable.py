"""The short way from a step's most probable tokens to its output."""

from __future__ import annotations

import numpy as np

from support.decode_steps import greedy_rows
from xllm_runtime.sampling.most_probable import most_probable_output, takes_most_probable


def test_only_plain_greedy_rows_take_it():
    assert takes_most_probable(greedy_rows(3))
    drawn, asking, banned, biased = (greedy_rows(3) for _ in range(4))
    drawn.temperature[1] = 0.5
    asking.num_logprobs[2] = 0
    banned.banned.append((0, np.array([1])))
    biased.logit_bias.append((0, np.array([1]), np.ones(1, np.float32)))
    assert not any(map(takes_most_probable, (drawn, asking, banned, biased)))


def test_rows_without_a_token_say_why():
    output = most_probable_output(np.array([4, 5, 6], np.int32), np.array([1.0, np.nan, -np.inf], np.float32))
    assert output.token_ids.tolist() == [4, -1, -1]
    assert output.errors == {1: "The model's logits are not finite.", 2: "Every token is barred."}
    assert most_probable_output(np.array([4], np.int32), np.ones(1, np.float32)).errors is None
