"""Every option is checked at once, and the error names the field."""

from __future__ import annotations

import math

import msgspec
import pytest

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("top_k", -2),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 10**6),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0.0),
        ("seed", 2**63),
        ("logprobs", -1),
        ("logprobs", 10_000),
        ("prompt_logprobs", 129),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("stop", tuple("abcdefghijklmnopq")),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ],
)
def test_refused_value_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.param == field
    assert field in refused.value.message


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(max_tokens=2, min_tokens=3)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_k=1)])
def test_greedy(params: SamplingParams) -> None:
    assert params.is_greedy


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,)).check_vocabulary(10)
    for params in (SamplingParams(logit_bias={10: 1.0}), SamplingParams(stop_token_ids=(10,))):
        with pytest.raises(InvalidRequest, match="10"):
            params.check_vocabulary(10)


def test_travels_as_msgpack() -> None:
    params = SamplingParams(stop=("a", "b"), logit_bias={3: -1.5}, seed=0, temperature=0.5, n=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
