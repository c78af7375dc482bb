"""The loop is safe under any policy, and the named ones keep their order."""

from __future__ import annotations

import random

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import InvalidConfig
from xllm_scheduler import Scheduler, SchedulerPolicy
from xllm_scheduler.policies import create_policy

PROMPT = [3 + 7 * i % 40 for i in range(61)]


class ShuffledPolicy:
    """Running and waiting candidates in random order: as unkind to preemption as a policy can be."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def plan(self, waiting, running, budget):
        entries = list(running)
        self._draw.shuffle(entries)
        num_first = self._draw.randrange(len(entries) + 1)
        yield from entries[:num_first]
        while len(waiting) and budget.can_admit:
            yield waiting.peek()
        yield from entries[num_first:]


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_candidates_breaks_anything(seed: int) -> None:
    harness = SchedulerHarness(num_blocks=24, block_size=4)
    policy: SchedulerPolicy = ShuffledPolicy(seed)
    harness.scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=12), harness.blocks, harness.stopping, policy=policy, clock=lambda: 0.0
    )
    for number in range(20):
        harness.add(f"r{number}", PROMPT[number : number + 20], seed=number, max_tokens=25)
        harness.step()
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions > 0
    for group in harness.groups:
        scheduled = [id(item.sequence) for item in group.batches[0]]
        assert len(set(scheduled)) == len(scheduled)


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_an_admission_leaves_blocks_for_running_sequences_to_grow(policy: str) -> None:
    harness = SchedulerHarness(num_blocks=40, block_size=4, policy=policy, enable_prefix_cache=False)
    harness.add("runs", PROMPT[:60], max_tokens=5, ignore_eos=True)
    harness.step()
    harness.add("waits", list(range(1, 97)), max_tokens=2, ignore_eos=True)
    harness.step()
    assert harness.scheduler.stats().num_waiting == 1
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions == 0


def test_prefill_first_pauses_decodes_while_prompts_are_computed() -> None:
    harness = SchedulerHarness(policy="prefill_first", max_num_batched_tokens=10)
    harness.add("a", PROMPT[:5], max_tokens=10, ignore_eos=True)
    harness.step()
    harness.add("b", PROMPT[5:30], max_tokens=10, ignore_eos=True)
    names = []
    for _ in range(5):
        harness.step()
        names.append([item.request.request_id for item in harness.groups[-1].batches[0]])
    assert names == [["b"], ["b"], ["b"], ["a", "b"], ["a", "b"]]


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(InvalidConfig, match="decode_first, prefill_first, unified, not 'fastest'"):
        create_policy("fastest")
