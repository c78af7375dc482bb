"""The ten orders rank as they say, and how urgent a sequence is follows from objectives, estimates and the clock."""

from __future__ import annotations

from math import inf

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.request import Request, SamplingParams, SequenceStatus, ServiceObjectives
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.objectives import Assessment, ObjectiveAssessor, Urgency
from xllm_scheduler.ordering import Ordering
from xllm_scheduler.queue import QueueEntry
from xllm_scheduler.strategies import STRATEGIES, find_strategy

LATENCY = LatencyModel.linear(constant_us=1000, per_token_us=1000, per_kv_token_us=0)
"""A step takes 1 ms, and 1 ms a token."""


def request(name: str = "r", *, priority: int = 0, prompt: int = 10, **objectives) -> Request:
    return Request(
        name,
        [1] * prompt,
        SamplingParams(),
        arrival_time_s=0.0,
        priority=priority,
        objectives=ServiceObjectives(**objectives),
    )


def assessed(
    *, is_decode=False, estimate_s=0.01, deadline_s=1.0, density=1.0, urgency=Urgency.CALM, priority=0
) -> tuple[Request, Assessment]:
    return request(priority=priority), Assessment(is_decode, estimate_s, deadline_s, deadline_s, 0.5, density, urgency)


def ranks(name: str, *candidates: tuple[Request, Assessment]) -> list[int]:
    """Return the indices of `candidates` in the order of strategy `name`."""
    strategy = STRATEGIES[name]

    def rank(index: int) -> tuple[float, ...]:
        if strategy.assessed_rank is not None:
            return strategy.assessed_rank(*candidates[index])
        return strategy.rank(candidates[index][0])

    return sorted(range(len(candidates)), key=rank)


def test_fcfs_and_priority_look_at_the_request_alone() -> None:
    candidates = [assessed(priority=2, deadline_s=0.0), assessed(priority=-1), assessed(priority=0)]
    assert ranks("fcfs", *candidates) == [0, 1, 2]
    assert ranks("priority", *candidates) == [1, 2, 0]


def test_deadline_sjf_and_density_and_their_decode_first_kin() -> None:
    candidates = [
        assessed(deadline_s=3.0, estimate_s=0.1, density=9.0),
        assessed(deadline_s=1.0, estimate_s=0.3, density=1.0),
        assessed(deadline_s=2.0, estimate_s=0.2, density=5.0, is_decode=True),
    ]
    assert ranks("deadline", *candidates) == [1, 2, 0]
    assert ranks("sjf", *candidates) == [0, 2, 1]
    assert ranks("density", *candidates) == [0, 2, 1]
    assert ranks("decode_density", *candidates) == [2, 0, 1]
    assert ranks("decode_deadline", *candidates) == [2, 1, 0]


def test_urgency_strategies_part_urgent_starved_late_and_calm() -> None:
    candidates = [
        assessed(deadline_s=5.0),
        assessed(urgency=Urgency.LATE, deadline_s=-1.0),
        assessed(urgency=Urgency.URGENT, density=2.0, priority=1),
        assessed(urgency=Urgency.URGENT, density=3.0, priority=3),
        assessed(urgency=Urgency.STARVED, deadline_s=-9.0, priority=2),
        assessed(urgency=Urgency.URGENT, is_decode=True, priority=4),
        assessed(is_decode=True, deadline_s=4.0),
    ]
    assert ranks("multi_slo_and_prio", *candidates) == [5, 4, 3, 2, 6, 0, 1]
    assert ranks("decode_urgency_density", *candidates) == [5, 6, 4, 3, 2, 0, 1]
    assert ranks("urgency_priority", *candidates) == [2, 4, 3, 5, 6, 0, 1]


def test_an_unknown_strategy_is_named_with_those_that_exist() -> None:
    assert len(STRATEGIES) == 11
    with pytest.raises(InvalidConfig, match=r"fcfs, priority, .*not 'loudest'"):
        find_strategy("loudest")


def test_objectives_are_checked_and_name_the_field() -> None:
    with pytest.raises(InvalidRequest, match="tpot_slo_ms") as caught:
        ServiceObjectives(tpot_slo_ms=-1.0)
    assert caught.value.param == "tpot_slo_ms"
    with pytest.raises(InvalidRequest, match="ttft_weight"):
        ServiceObjectives(ttft_weight=inf)


def assess(request: Request, now_s: float, **config) -> Assessment:
    entry = QueueEntry(request, request.sequences[0], 0, (), ())
    (assessment,), _ = ObjectiveAssessor(SchedulerConfig(**config), LATENCY).assess([entry], now_s)
    return assessment


def decoding(num_tokens: int, **objectives) -> Request:
    """A request that had its first token at 1 s and has generated `num_tokens`."""
    result = request(**objectives)
    sequence = result.sequences[0]
    for _ in range(num_tokens):
        sequence.append(5)
    sequence.status = SequenceStatus.DECODE
    sequence.num_computed_tokens = sequence.num_tokens - 1
    result.first_token_time_s = 1.0
    return result


def test_the_deadline_of_a_prompt_is_its_first_tokens() -> None:
    assessment = assess(request(ttft_slo_ms=300.0), 0.1)
    assert assessment.deadline_s == pytest.approx(0.3)
    assert assessment.remaining_s == pytest.approx(0.2)
    assert assessment.estimate_s == pytest.approx(0.010)
    assert assess(request(), 5.0).remaining_s == inf
    assert assess(request(), 0.1, default_ttft_slo_ms=300.0).remaining_s == pytest.approx(0.2)


def test_a_decode_that_was_fast_may_be_slow() -> None:
    assert assess(decoding(5, tpot_slo_ms=50.0), 1.1).deadline_s == pytest.approx(1.25)
    assert assess(decoding(1, tpot_slo_ms=50.0), 1.1).remaining_s == pytest.approx(-0.05)
    assert assess(decoding(5, tpot_slo_ms=50.0, ttlt_slo_ms=1200.0), 1.1).deadline_s == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("now_s", "config", "urgency"),
    [
        (0.0, {}, Urgency.CALM),
        (0.2895, {}, Urgency.LATE),
        (0.2885, {}, Urgency.URGENT),
        (0.2885, {"urgency_coefficient": 0.5}, Urgency.CALM),
        (0.0, {"urgency_coefficient": 100.0}, Urgency.URGENT),
        (0.5, {}, Urgency.LATE),
        (0.61, {}, Urgency.STARVED),
        (0.61, {"starvation_threshold": 2.0}, Urgency.LATE),
        (0.61, {"enable_starvation_guard": False}, Urgency.LATE),
    ],
)
def test_urgency_of_a_prompt_of_10_ms_that_is_due_at_300_ms(now_s: float, config: dict, urgency: Urgency) -> None:
    assert assess(request(ttft_slo_ms=300.0), now_s, **config).urgency is urgency


def test_a_late_decode_can_catch_up_so_that_it_is_urgent() -> None:
    assert assess(decoding(2, tpot_slo_ms=50.0), 1.11).urgency is Urgency.URGENT
    assert assess(decoding(2, tpot_slo_ms=50.0), 1.2).urgency is Urgency.STARVED


def test_weights_and_priority_make_density() -> None:
    plain = assess(request(), 0.0).density
    assert assess(request(ttft_weight=3.0), 0.0).density == pytest.approx(3 * plain)
    assert assess(request(tpot_weight=3.0), 0.0).density == pytest.approx(plain)
    assert assess(request(priority=-2), 0.0).density == pytest.approx(4 * plain)
    assert assess(request(priority=9999), 0.0).density > 0
    assert assess(decoding(3, tpot_weight=3.0), 1.0).density == pytest.approx(3e3)


def test_the_step_limit_is_what_can_still_be_met_but_not_below_a_share_of_the_token_interval() -> None:
    assessor = ObjectiveAssessor(SchedulerConfig(), LATENCY)

    def limit(*requests: Request, now_s: float = 0.1) -> float:
        return assessor.assess([QueueEntry(r, r.sequences[0], 0, (), ()) for r in requests], now_s)[1]

    assert limit(request()) == inf
    assert limit(request(ttft_slo_ms=300.0), request(ttft_slo_ms=200.0)) == pytest.approx(0.1)
    assert limit(request(ttft_slo_ms=50.0), request(ttft_slo_ms=200.0)) == pytest.approx(0.1)
    assert limit(decoding(1, tpot_slo_ms=50.0), now_s=1.04) == pytest.approx(0.65 * 0.050)
    assert limit(decoding(1, tpot_slo_ms=50.0), now_s=9.0) == pytest.approx(0.65 * 0.050)


def test_offline_requests_come_last_in_every_order() -> None:
    for name in STRATEGIES:
        ordering = Ordering(STRATEGIES[name], SchedulerConfig(), LATENCY)
        offline = Request("o", [1], SamplingParams(), arrival_time_s=0.0, priority=-9, is_offline=True)
        online = request(prompt=900, priority=9)
        running = [
            ordering.entry(offline, offline.sequences[0], 0),
            ordering.entry(online, online.sequences[0], 1),
        ]
        ordering.reorder(SchedulerHarness().scheduler._lifecycle.waiting, running, 0.0)
        assert sorted(running, key=lambda entry: entry.order)[0].request is online, name


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "unified"])
def test_no_strategy_changes_what_is_generated(policy: str, strategy: str) -> None:
    harness = SchedulerHarness(
        num_blocks=30, policy=policy, priority_strategy=strategy, max_num_batched_tokens=24, latency=LATENCY
    )
    for number in range(10):
        harness.add(
            f"r{number}",
            [3 + (7 * i + number) % 40 for i in range(4 + 5 * (number % 4))],
            max_tokens=15,
            ignore_eos=True,
            priority=number % 3,
            is_offline=number % 4 == 3,
            objectives=ServiceObjectives(ttft_slo_ms=20.0 * (number % 3), tpot_slo_ms=10.0),
        )
        harness.step()
        harness.now_s += 0.02
    harness.run()
    harness.check_outputs()


def test_the_shortest_job_goes_first_and_a_late_arrival_overtakes() -> None:
    harness = SchedulerHarness(priority_strategy="sjf", max_num_seqs=1)
    for name, length in (("long", 40), ("short", 8), ("middle", 20)):
        harness.add(name, list(range(1, length + 1)), max_tokens=2, ignore_eos=True)
    harness.step()
    harness.add("late", [9, 8, 7], max_tokens=2, ignore_eos=True)
    harness.run()
    ended = [delta.request_id for delta in harness.deltas if delta.finish_reason]
    assert ended == ["short", "late", "middle", "long"]
