"""Requests that want a vector of their prompt: what they sum up, whom they share steps with, and what they leave behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.scheduler_harness import SchedulerHarness
from xllm_framework.request.pooling_params import PoolingParams

KINDS = ("last", "mean", "cls")


def expected(prompt: list[int], kind: str) -> float:
    return {"last": prompt[-1], "mean": sum(prompt) / len(prompt), "cls": prompt[0]}[kind]


def pooled(harness: SchedulerHarness, request_id: str) -> float:
    """Return the vector of a request that has ended, after a look at how it ended."""
    delta = harness.last[request_id, 0]
    assert (delta.finish_reason, delta.token_ids) == ("stop", [])
    assert delta.pooled is not None
    value, one = np.frombuffer(delta.pooled, "<f4")
    assert one == pytest.approx(1.0)
    return float(value)


@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_summed_up(kind: str, is_overlapped: bool) -> None:
    harness = SchedulerHarness(max_prefill_chunk=5, is_overlapped=is_overlapped)
    prompt = [7 + index % 11 for index in range(23)]
    for name in ("first", "again"):
        harness.add(name, prompt, max_tokens=0, pooling=PoolingParams(kind))
        harness.run()
        assert pooled(harness, name) == pytest.approx(expected(prompt, kind))
    assert harness.last["again", 0].num_cached_tokens == (20 if kind == "last" else 0)
    assert harness.scheduler.stats().num_generated_tokens == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([*KINDS, ""]), st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["decode_first", "prefill_first", "unified"]),
)
def test_any_company_gives_the_same(
    requests: list[tuple[str, int, int]], is_overlapped: bool, has_cache: bool, policy: str
) -> None:
    """Few blocks, so that prompts are preempted; equal beginnings, so that they share; aborts in between."""
    harness = SchedulerHarness(
        num_blocks=24,
        enable_prefix_cache=has_cache,
        is_overlapped=is_overlapped,
        max_prefill_chunk=7,
        max_num_batched_tokens=16,
        policy=policy,
    )
    for number, (kind, length, start) in enumerate(requests):
        prompt = [start + index % 5 for index in range(length)]
        options = {"max_tokens": 0, "pooling": PoolingParams(kind)} if kind else {"max_tokens": 30, "ignore_eos": True}  # type: ignore[arg-type]
        harness.add(str(number), prompt, **options)
    harness.step()
    harness.scheduler.abort(["0"])
    harness.run()
    for number, (kind, length, start) in enumerate(requests):
        if number > 0 and kind:
            prompt = [start + index % 5 for index in range(length)]
            assert pooled(harness, str(number)) == pytest.approx(expected(prompt, kind))
        elif number > 0:
            assert len(harness.tokens[str(number), 0]) == 30


def test_broken_hidden_states_fail_alone() -> None:
    harness = SchedulerHarness()
    harness.add("good", [3, 4], max_tokens=0, pooling=PoolingParams("mean"))
    harness.add("bad", [5, 6], max_tokens=0, pooling=PoolingParams("mean"))
    group = harness.scheduler.schedule()
    [forward_input] = [harness._builder.build(batch) for batch in group.batches]
    [output] = harness._compute(group, [forward_input])
    output.pooled = {0: np.array([7, 2], "f4"), 1: np.array([np.nan, 2], "f4")}
    good, bad = harness.scheduler.update(group, [output])
    assert good.finish_reason == "stop"
    assert (bad.finish_reason, bad.error_kind, bad.pooled) == ("error", "request_failed", None)
    harness.check_idle()
