"""Offline work fills what is left, gives way within one step, and keeps what it has."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness

PROMPT = [3 + 7 * i % 40 for i in range(400)]


def names(harness: SchedulerHarness) -> list[str]:
    return [item.request.request_id for item in harness.groups[-1].batches[0]]


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "unified"])
def test_tokens_go_to_online_work_first_and_offline_work_keeps_its_blocks(policy: str) -> None:
    harness = SchedulerHarness(policy=policy, max_num_batched_tokens=32)
    harness.add("offline", PROMPT[:90], max_tokens=4, ignore_eos=True, is_offline=True)
    harness.step()
    assert names(harness) == ["offline"]
    harness.add("online", PROMPT[100:164], max_tokens=4, ignore_eos=True)
    harness.step()
    assert names(harness) == ["online"]
    harness.step()
    assert names(harness) == ["online"]
    assert len(harness.requests["offline"].sequences[0].block_table) > 0
    harness.run()
    harness.check_outputs()
    assert harness.requests["offline"].sequences[0].num_preemptions == 0


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "unified"])
def test_an_online_prompt_takes_blocks_from_running_offline_work_within_one_step(policy: str) -> None:
    harness = SchedulerHarness(num_blocks=40, policy=policy)
    for number in range(3):
        harness.add(f"offline{number}", PROMPT[number : number + 44], max_tokens=8, ignore_eos=True, is_offline=True)
    harness.step()
    assert harness.scheduler.stats().num_running == 3
    harness.add("online", PROMPT[100:160], max_tokens=4, ignore_eos=True)
    harness.step()
    assert "online" in names(harness)
    harness.run()
    harness.check_outputs()
    assert harness.requests["online"].sequences[0].num_preemptions == 0
    recomputed = harness.store.num_computed_tokens
    assert recomputed < 3 * 44 + 60 + 28 + 2 * 52, "what offline work had computed was found in the prefix cache"


def test_an_online_request_takes_the_place_of_an_offline_one() -> None:
    harness = SchedulerHarness(max_num_seqs=2)
    for number in range(2):
        harness.add(f"offline{number}", PROMPT[number : number + 9], max_tokens=8, ignore_eos=True, is_offline=True)
    harness.step()
    harness.add("online", PROMPT[100:110], max_tokens=2, ignore_eos=True)
    harness.step()
    assert names(harness) == ["offline0", "online"]
    harness.run()
    harness.check_outputs()


def test_offline_work_is_left_alone_if_the_option_says_so() -> None:
    harness = SchedulerHarness(max_num_seqs=2, enable_online_preempt_offline=False)
    for number in range(2):
        harness.add(f"offline{number}", PROMPT[number : number + 9], max_tokens=8, ignore_eos=True, is_offline=True)
    harness.step()
    harness.add("online", PROMPT[100:110], max_tokens=2, ignore_eos=True)
    harness.run()
    assert harness.scheduler.stats().num_preemptions == 0


def test_online_requests_overtake_waiting_offline_ones_whatever_their_priority() -> None:
    harness = SchedulerHarness(max_num_seqs=1, enable_online_preempt_offline=False)
    harness.add("offline", PROMPT[:5], max_tokens=2, ignore_eos=True, priority=-9, is_offline=True)
    harness.add("online", PROMPT[5:10], max_tokens=2, ignore_eos=True)
    harness.run()
    assert [delta.request_id for delta in harness.deltas if delta.finish_reason] == ["online", "offline"]


def test_offline_work_alone_runs_as_any_other() -> None:
    harness = SchedulerHarness(num_blocks=16)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 14], max_tokens=20, ignore_eos=True, is_offline=True)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions > 0
