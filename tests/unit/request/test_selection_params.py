"""best_of and beam_width: ranges, and what they cannot be combined with."""

from __future__ import annotations

import pytest

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import Request, SamplingParams


@pytest.mark.parametrize(
    ("param", "options"),
    [
        ("best_of", {"n": 3, "best_of": 2}),
        ("best_of", {"best_of": 129}),
        ("beam_width", {"beam_width": 0}),
        ("beam_width", {"beam_width": 513}),
        ("n", {"beam_width": 2, "n": 3}),
        ("best_of", {"beam_width": 2, "best_of": 2}),
        ("stop", {"beam_width": 2, "stop": ("x",)}),
        ("logit_bias", {"beam_width": 2, "logit_bias": {1: 1.0}}),
        ("frequency_penalty", {"beam_width": 2, "frequency_penalty": 1.0}),
        ("max_tokens", {"beam_width": 2, "max_tokens": 0}),
        ("length_penalty", {"length_penalty": float("nan")}),
    ],
)
def test_wrong_values_name_their_field(param: str, options: dict) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams(**options)
    assert raised.value.param == param


def test_the_engine_side_generates_best_of_sequences():
    sampling = SamplingParams(n=2, best_of=5)
    assert sampling.is_selecting
    assert sampling.num_logprobs == 0
    assert len(Request("r", [1], sampling, arrival_time_s=0.0).sequences) == 5
    assert not SamplingParams(n=2, best_of=2).is_selecting
    assert SamplingParams(n=2, best_of=2).num_logprobs == -1
