"""Texts are the same with each feature on and off, through the front side too: stop strings, best of several, beams, streams of n."""

from __future__ import annotations

import functools
import random

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM

FEATURES = {
    "prefix cache off": {"enable_prefix_cache": False},
    "overlap": {"enable_schedule_overlap": True},
    "overlap, few blocks": {"enable_schedule_overlap": True, "num_blocks": 17},
    "few blocks": {"num_blocks": 17},
    "small steps": {"max_num_batched_tokens": 13},
    "unified": {"policy": "unified", "priority_strategy": "sjf"},
    "two ranks, few blocks": {"dp_size": 2, "num_blocks": 17},
}


def prompts() -> list[list[int]]:
    chance = random.Random(3)
    shared = [chance.randrange(97, 123) for _ in range(40)]
    return [
        shared[: 20 * (index % 3)] + [chance.randrange(97, 123) for _ in range(4 + 6 * index)] for index in range(8)
    ]


def params(stops: list[str]) -> list[SamplingParams]:
    """Return one a prompt; a stop string is two characters of the answer without it."""
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    seeded = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True, n=3)
    if not stops:
        return [greedy, seeded] * 4
    return [
        SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=(stops[0],)),
        SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True, n=3, stop=(stops[1],)),
        SamplingParams(temperature=1.0, seed=6, max_tokens=16, ignore_eos=True, n=2, best_of=4),
        SamplingParams(temperature=0.0, max_tokens=12, beam_width=4, n=3),
        SamplingParams(temperature=0.0, max_tokens=24, stop=(stops[4],), include_stop_str_in_output=True),
        SamplingParams(temperature=0.7, top_k=9, seed=7, max_tokens=24, presence_penalty=1.0, stop=(stops[5],)),
        greedy,
        seeded,
    ]


def answers(stops: tuple[str, ...], **options) -> list[list[tuple[str, str | None]]]:
    """Return (text, finish reason) of every sequence."""
    flat = {"device": "cpu", "dtype": "float32", "threads": 1, "num_blocks": 120, "check_integrity": True}
    with LLM(str(tiny_checkpoint("llama")), **{**flat, **options}) as llm:
        outputs = llm.generate(prompts(), params(list(stops)), use_tqdm=False)
    return [[(sequence.text, sequence.finish_reason) for sequence in output.outputs] for output in outputs]


@functools.cache
def stops() -> tuple[str, ...]:
    """Return two characters from the middle of each answer."""
    return tuple(output[0][0][4:6] for output in answers((), model_impl="native"))


@functools.cache
def plain(model_impl: str) -> list[list[tuple[str, str | None]]]:
    return answers(stops(), model_impl=model_impl)


@pytest.mark.parametrize("model_impl", ["native", "python"])
@pytest.mark.parametrize("feature", FEATURES)
def test_texts_do_not_depend_on(feature: str, model_impl: str) -> None:
    wanted = plain(model_impl)
    assert wanted[0][0][1] == "stop"
    assert len(wanted[0][0][0]) <= 4
    assert [len(output) for output in wanted] == [1, 3, 2, 3, 1, 1, 1, 3]
    assert answers(stops(), model_impl=model_impl, **FEATURES[feature]) == wanted
