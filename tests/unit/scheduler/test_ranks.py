"""Several data-parallel ranks: one batch each, work where there is room, and where prompts are cached."""

from __future__ import annotations

from support.scheduler_harness import SchedulerHarness

PROMPT = [3 + 7 * i % 40 for i in range(400)]


def ranks_of(harness: SchedulerHarness) -> dict[str, int]:
    return {name: request.sequences[0].rank for name, request in harness.requests.items()}


def test_a_burst_is_spread_and_each_rank_has_its_own_budget() -> None:
    harness = SchedulerHarness(num_ranks=4, max_num_batched_tokens=32)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[30 * number : 30 * number + 30], max_tokens=4, ignore_eos=True)
    harness.step()
    assert [batch.num_tokens for batch in harness.groups[0].batches] == [30, 30, 30, 30]
    assert sorted(ranks_of(harness).values()) == [0, 1, 2, 3]
    harness.run()
    harness.check_outputs()


def test_every_step_has_one_batch_a_rank_also_where_it_is_empty() -> None:
    harness = SchedulerHarness(num_ranks=3)
    harness.add("r", PROMPT[:9], max_tokens=3, ignore_eos=True)
    harness.run()
    assert {tuple(len(batch) for batch in group.batches) for group in harness.groups} == {(1, 0, 0)}


def test_a_prompt_goes_where_it_is_cached_until_others_have_much_more_room() -> None:
    harness = SchedulerHarness(num_ranks=2, num_blocks=100)
    harness.add("first", PROMPT[:80], max_tokens=1)
    harness.run()
    home = ranks_of(harness)["first"]
    harness.add("again", [*PROMPT[:80], 1, 2], max_tokens=60, ignore_eos=True)
    harness.step()
    assert ranks_of(harness)["again"] == home
    assert harness.last["again", 0].num_cached_tokens == 80
    for number in range(8):
        harness.add(f"other{number}", [*PROMPT[:80], number, 3], max_tokens=60, ignore_eos=True)
    harness.step()
    assert set(ranks_of(harness).values()) == {0, 1}
    harness.run()
    harness.check_outputs()


def test_a_sequence_stays_on_its_rank_until_it_is_preempted() -> None:
    harness = SchedulerHarness(num_ranks=2, num_blocks=16, enable_prefix_cache=False)
    for number in range(6):
        harness.add(f"r{number}", PROMPT[number : number + 14], max_tokens=30, ignore_eos=True)
    homes: dict[tuple[str, int], set[int]] = {}
    while not harness.is_idle:
        harness.step()
        for rank, batch in enumerate(harness.groups[-1].batches):
            for item in batch:
                homes.setdefault((item.request.request_id, item.sequence.num_preemptions), set()).add(rank)
    harness.check_idle()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions > 0
    assert all(len(ranks) == 1 for ranks in homes.values())


def test_a_full_rank_preempts_its_own_and_leaves_the_other_alone() -> None:
    harness = SchedulerHarness(num_ranks=2, num_blocks=12, enable_prefix_cache=False)
    harness.add("alone", PROMPT[:20], max_tokens=4, ignore_eos=True)
    for number in range(3):
        harness.add(f"r{number}", PROMPT[number : number + 8], max_tokens=30, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.requests["alone"].sequences[0].num_preemptions == 0


def test_gauges_count_all_ranks() -> None:
    harness = SchedulerHarness(num_ranks=2, num_blocks=50)
    assert harness.scheduler.stats().num_blocks == harness.scheduler.stats().num_free_blocks == 100
