"""What the scheduler decides in single situations: chunks, order, limits, sharing, deadlines, failures."""

from __future__ import annotations

import pytest

from support.paged_store import logprob_of
from support.scheduler_harness import SchedulerHarness
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import StoppingChecker
from xllm_scheduler import Scheduler

PROMPT = [3 + 7 * i % 40 for i in range(61)]


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 0])
def test_outputs_do_not_depend_on_chunk_size_or_policy(policy: str, chunk: int) -> None:
    harness = SchedulerHarness(
        policy=policy, max_prefill_chunk=chunk, max_num_batched_tokens=20, priority_strategy="fcfs"
    )
    for number in range(6):
        harness.add(f"r{number}", PROMPT[number * 3 : 50], seed=number, max_tokens=12, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert max(size for _, size in harness.chunks("r0")) == (chunk if 0 < chunk < 20 else 20)
    assert all(group.num_tokens <= 20 for group in harness.groups)


def test_chunks_cover_the_prompt_once_and_then_one_token_a_step() -> None:
    harness = SchedulerHarness(max_prefill_chunk=16)
    harness.add("r", PROMPT, max_tokens=3, ignore_eos=True)
    harness.run()
    assert harness.chunks("r") == [(0, 16), (16, 16), (32, 16), (48, 13), (61, 1), (62, 1)]


def test_decode_first_mixes_and_prefill_first_does_not() -> None:
    mixed = {}
    for policy in ("decode_first", "prefill_first"):
        harness = SchedulerHarness(policy=policy, max_num_batched_tokens=8)
        harness.add("a", PROMPT[:6], max_tokens=20, ignore_eos=True)
        harness.step()
        harness.add("b", PROMPT[10:40], max_tokens=20, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        kinds = [{item.num_scheduled_tokens > 1 for item in group.batches[0]} for group in harness.groups]
        mixed[policy] = {True, False} in kinds
        first = harness.groups[1].batches[0].scheduled[0]
        assert first.request.request_id == ("a" if policy == "decode_first" else "b")
    assert mixed == {"decode_first": True, "prefill_first": False}


def test_decodes_come_first_in_the_batch() -> None:
    harness = SchedulerHarness(max_num_batched_tokens=16)
    harness.add("old", PROMPT[:6], max_tokens=9, ignore_eos=True)
    harness.step()
    harness.add("new", PROMPT[20:50], max_tokens=2, ignore_eos=True)
    harness.step()
    assert [item.request.request_id for item in harness.groups[1].batches[0]] == ["old", "new"]


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_without_chunks_a_prompt_waits_until_it_fits_whole(policy: str) -> None:
    harness = SchedulerHarness(policy=policy, enable_chunked_prefill=False, max_num_batched_tokens=32)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 30], max_tokens=4, ignore_eos=True)
    harness.add("long", PROMPT[:33], max_tokens=4)
    harness.step()
    assert harness.groups[0].num_tokens == 30
    harness.run()
    error = harness.last["long", 0]
    assert (error.finish_reason, error.error_kind) == ("error", "request_too_long")
    assert "33 tokens" in error.error
    assert "max_num_batched_tokens" in error.error
    assert all(harness.chunks(f"r{number}")[0] == (0, 30) for number in range(4))


def test_a_preempted_sequence_is_recomputed_in_chunks_even_without_chunked_prefill() -> None:
    harness = SchedulerHarness(
        num_blocks=16, enable_chunked_prefill=False, max_num_batched_tokens=16, enable_prefix_cache=False
    )
    for number in range(3):
        harness.add(f"r{number}", PROMPT[number * 4 : number * 4 + 14], max_tokens=30, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("length", [7, 8, 9, 11, 12, 13])
def test_a_full_prefix_hit_leaves_at_least_one_token_to_compute(length: int) -> None:
    harness = SchedulerHarness(block_size=4)
    for name in ("first", "second"):
        harness.add(name, PROMPT[:length], max_tokens=6, ignore_eos=True)
        harness.run()
    harness.check_outputs()
    cached = (length - 1) // 4 * 4
    assert harness.chunks("first")[0] == (0, length)
    assert harness.chunks("second")[0] == (cached, length - cached)
    assert harness.last["first", 0].num_cached_tokens == 0
    assert harness.last["second", 0].num_cached_tokens == cached
    stats = harness.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (2 * length, cached)


def test_outputs_are_found_in_the_cache_too() -> None:
    harness = SchedulerHarness(block_size=4)
    harness.add("first", PROMPT[:10], max_tokens=9, ignore_eos=True)
    harness.run()
    harness.add("second", PROMPT[:10] + harness.tokens["first", 0], max_tokens=2)
    harness.run()
    assert harness.last["second", 0].num_cached_tokens == 16


def test_only_equal_salts_share() -> None:
    harness = SchedulerHarness()
    for number, salt in enumerate(("", "a", "b", "a", "\ud800")):
        harness.add(f"r{number}", PROMPT[:20], max_tokens=2, cache_salt=salt)
        harness.run()
    cached = [harness.last[f"r{number}", 0].num_cached_tokens for number in range(5)]
    assert cached == [0, 0, 0, 16, 0]


def test_smaller_priority_is_admitted_first() -> None:
    harness = SchedulerHarness(max_num_seqs=1)
    for name, priority in (("a", 1), ("b", 2), ("c", 0), ("d", 1)):
        harness.add(name, PROMPT[:5], max_tokens=2, ignore_eos=True, priority=priority)
    harness.run()
    ended = [delta.request_id for delta in harness.deltas if delta.finish_reason]
    assert ended == ["c", "a", "d", "b"]


def test_larger_priority_is_preempted_first_however_old() -> None:
    harness = SchedulerHarness(num_blocks=12, enable_prefix_cache=False)
    harness.add("old", PROMPT[:12], max_tokens=20, ignore_eos=True, priority=5)
    harness.step()
    for name in ("new", "newer"):
        harness.add(name, PROMPT[5:17], max_tokens=20, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    preemptions = {name: request.sequences[0].num_preemptions for name, request in harness.requests.items()}
    assert preemptions["old"] > 0
    assert preemptions["new"] == 0
    assert [d.request_id for d in harness.deltas if d.finish_reason][-1] == "old"


def test_the_newest_is_preempted_and_comes_back_before_those_who_wait() -> None:
    harness = SchedulerHarness(num_blocks=12, enable_prefix_cache=False, max_num_seqs=3)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 12], max_tokens=20, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    preemptions = {name: request.sequences[0].num_preemptions for name, request in harness.requests.items()}
    assert preemptions["r0"] == 0
    assert preemptions["r2"] > 0
    assert harness.scheduler.stats().num_preemptions == sum(preemptions.values())
    starts = [d.first_scheduled_time_s for d in harness.deltas]
    assert None not in starts
    ended = [delta.request_id for delta in harness.deltas if delta.finish_reason]
    assert ended == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_a_prompt_that_can_never_fit_fails_alone(enable_prefix_cache: bool) -> None:
    harness = SchedulerHarness(num_blocks=10, block_size=4, enable_prefix_cache=enable_prefix_cache)
    harness.add("before", PROMPT[:8], max_tokens=3, ignore_eos=True)
    harness.add("huge", PROMPT[:41], max_tokens=3, n=3)
    harness.add("whole", PROMPT[:40], max_tokens=1)
    harness.run()
    for index in range(3):
        delta = harness.last["huge", index]
        assert (delta.finish_reason, delta.error_kind, delta.token_ids) == ("error", "out_of_blocks", [])
        assert "11 KV blocks" in delta.error
    for name in ("before", "whole"):
        assert harness.tokens[name, 0] == harness.expected(name)


def test_a_decode_that_outgrows_the_pool_alone_ends_with_length() -> None:
    harness = SchedulerHarness(num_blocks=10, block_size=4)
    harness.add("r", PROMPT[:10], max_tokens=100, ignore_eos=True)
    harness.run()
    assert harness.last["r", 0].finish_reason == "length"
    assert harness.last["r", 0].error is None
    assert harness.tokens["r", 0] == harness.expected("r")[:31]


def test_sequences_that_outgrow_the_pool_together_all_end_with_length() -> None:
    harness = SchedulerHarness(num_blocks=10, block_size=4, enable_prefix_cache=False)
    for number in range(3):
        harness.add(f"r{number}", PROMPT[number : number + 10], max_tokens=100, ignore_eos=True)
    harness.run()
    for number in range(3):
        assert harness.last[f"r{number}", 0].finish_reason == "length"
        assert harness.tokens[f"r{number}", 0] == harness.expected(f"r{number}")[:31]


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_n_sequences_compute_the_prompt_once_only_with_the_prefix_cache(enable_prefix_cache: bool) -> None:
    harness = SchedulerHarness(enable_prefix_cache=enable_prefix_cache)
    harness.add("r", PROMPT[:21], n=4, max_tokens=5, ignore_eos=True)
    harness.step()
    assert len(harness.groups[0].batches[0]) == (1 if enable_prefix_cache else 4)
    harness.run()
    harness.check_outputs()
    outputs = {tuple(harness.tokens["r", index]) for index in range(4)}
    assert len(outputs) == 4
    extra = 1 if enable_prefix_cache else 21
    assert harness.store.num_computed_tokens == 21 + 3 * extra + 4 * 4
    assert harness.scheduler.stats().num_prompt_tokens == 21
    assert {delta.num_cached_tokens for delta in harness.deltas} == {0}


@pytest.mark.parametrize("n", [1, 3])
def test_max_tokens_zero_only_computes_the_prompt(n: int) -> None:
    harness = SchedulerHarness(max_prefill_chunk=8)
    harness.add("r", PROMPT[:21], max_tokens=0, n=n, prompt_logprobs=1)
    harness.run()
    for index in range(n):
        assert harness.last["r", index].finish_reason == "length"
        assert harness.tokens["r", index] == []
    assert len(harness.last["r", 0].prompt_logprobs) == 21


@pytest.mark.parametrize("chunk", [1, 5, 8, 0])
def test_prompt_logprobs_cover_the_whole_prompt_despite_chunks_and_cache(chunk: int) -> None:
    harness = SchedulerHarness(max_prefill_chunk=chunk)
    prompt = PROMPT[:21]
    harness.add("warm", prompt, max_tokens=1)
    harness.run()
    harness.add("r", prompt, max_tokens=3, ignore_eos=True, prompt_logprobs=2, logprobs=3)
    harness.run()
    deltas = [delta for delta in harness.deltas if delta.request_id == "r"]
    assert [delta.prompt_logprobs is not None for delta in deltas] == [True, False, False]
    first, *rest = deltas[0].prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in rest] == prompt[1:]
    assert [entry.logprob for entry in rest] == [logprob_of(prompt[:i], prompt[i]) for i in range(1, 21)]
    assert all(entry.top_ids == [0, 1] and entry.top_logprobs == [0.0, -1.0] for entry in rest)
    assert deltas[0].num_cached_tokens == 0
    for delta in deltas:
        (entry,) = delta.logprobs
        assert entry.token_id == delta.token_ids[0]
        assert entry.top_ids == [0, 1, 2]


def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt() -> None:
    harness = SchedulerHarness(num_blocks=16, block_size=4, max_num_batched_tokens=4)
    harness.add("old", PROMPT[:4], max_tokens=44, ignore_eos=True)
    harness.step()
    harness.add("new", PROMPT[5:50], max_tokens=1, prompt_logprobs=0)
    harness.run()
    harness.check_outputs()
    assert harness.requests["new"].sequences[0].num_preemptions > 0
    (delta,) = [delta for delta in harness.deltas if delta.request_id == "new"]
    assert [entry and entry.token_id for entry in delta.prompt_logprobs] == [None, *PROMPT[6:50]]


def test_a_passed_deadline_drops_what_waits_and_nothing_else() -> None:
    harness = SchedulerHarness(max_num_seqs=1)
    harness.add("runs", PROMPT[:9], max_tokens=6, ignore_eos=True, deadline_s=1.0)
    harness.add("waits", PROMPT[:9], max_tokens=6, deadline_s=5.0, n=2)
    harness.add("patient", PROMPT[:9], max_tokens=2, ignore_eos=True)
    harness.step()
    harness.now_s = 4.9
    harness.step()
    assert ("waits", 0) not in harness.last
    harness.now_s = 5.0
    deltas = harness.step()
    assert {(d.request_id, d.index, d.error_kind) for d in deltas if d.error} == {
        ("waits", 0, "deadline_exceeded"),
        ("waits", 1, "deadline_exceeded"),
    }
    assert harness.scheduler.stats().num_waiting == 1
    harness.run()
    for name in ("runs", "patient"):
        assert harness.tokens[name, 0] == harness.expected(name)


def test_an_error_of_one_row_ends_that_sequence_alone() -> None:
    harness = SchedulerHarness()
    for name in ("good", "bad", "fine"):
        harness.add(name, PROMPT[:9], max_tokens=4, ignore_eos=True, seed=3)
    harness.step()
    harness.store.fail_rows["bad"] = "logits are not finite"
    harness.run()
    bad = harness.last["bad", 0]
    assert (bad.finish_reason, bad.error, bad.error_kind) == ("error", "logits are not finite", "request_failed")
    assert len(harness.tokens["bad", 0]) == 1
    for name in ("good", "fine"):
        assert harness.tokens[name, 0] == harness.expected(name)


def test_stop_tokens_end_with_their_id() -> None:
    harness = SchedulerHarness()
    harness.add("r", PROMPT[:9], max_tokens=50, ignore_eos=True)
    harness.run()
    third = harness.tokens["r", 0][2]
    harness.add("s", PROMPT[:9], max_tokens=50, ignore_eos=True, stop_token_ids=(third,))
    harness.run()
    last = harness.last["s", 0]
    assert (last.finish_reason, last.stop_reason) == ("stop", third)
    assert harness.tokens["s", 0][-1] == third


def test_the_context_ends_a_sequence_with_length() -> None:
    harness = SchedulerHarness(max_model_len=20)
    harness.add("r", PROMPT[:9], ignore_eos=True)
    harness.run()
    assert harness.last["r", 0].finish_reason == "length"
    assert len(harness.tokens["r", 0]) == 11


def test_counters_never_decrease_and_gauges_are_of_now() -> None:
    harness = SchedulerHarness(num_blocks=16)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 14], max_tokens=20, ignore_eos=True)
    before = harness.scheduler.stats()
    assert (before.num_waiting, before.num_blocks, before.num_free_blocks) == (4, 16, 16)
    while harness.scheduler.has_work:
        harness.step()
        now = harness.scheduler.stats()
        for name in ("num_steps", "num_generated_tokens", "num_preemptions", "num_prompt_tokens", "step_time_s"):
            assert getattr(now, name) >= getattr(before, name)
        before = now
    assert before.num_generated_tokens == 80
    assert before.num_prompt_tokens == 4 * 14
    assert (before.num_running, before.num_waiting) == (0, 0)


def test_a_request_id_in_use_or_an_empty_prompt_is_refused_at_once() -> None:
    harness = SchedulerHarness()
    harness.add("r", PROMPT[:9], max_tokens=2)
    with pytest.raises(InvalidRequest, match="'r' is in use"):
        harness.add("r", PROMPT[:9])
    with pytest.raises(InvalidRequest, match="at least one token"):
        harness.add("empty", [])
    harness.run()
    harness.add("r", PROMPT[:9], max_tokens=2)


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"policy": "random"}])
def test_impossible_options_are_named(options: dict) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        Scheduler(SchedulerConfig(**options), BlockManager(4, 4), StoppingChecker((), 10))


def test_no_more_sequences_run_than_allowed() -> None:
    harness = SchedulerHarness(max_num_seqs=3)
    for number in range(8):
        harness.add(f"r{number}", PROMPT[number : number + 9], max_tokens=5, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert max(len(group.batches[0]) for group in harness.groups) == 3
