"""Soak of the scheduler: many requests of every kind through the simulator, with aborts, and a check of every block.

    python benchmarks/simulator.py [--requests 10000] [--seed 0] [--compare]

`--compare` first prints what each feature gains over itself switched off, beside what is claimed elsewhere. Exits with 1 if
anything is left at the end, an invariant is broken on the way, or a request got no end.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import numpy as np

from xllm_framework.batch import BatchGroup, ForwardOutput
from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager, StateSlots
from xllm_framework.request import Request, SamplingParams, ServiceObjectives, StoppingChecker
from xllm_scheduler import Scheduler
from xllm_scheduler.latency import LatencyModel, StepShape
from xllm_scheduler.simulator.compare import Setting, compare
from xllm_scheduler.strategies import STRATEGIES

LAYERS = (((0,), 0), ((256, 0), 0), ((0,), 150))
"""Windows of the groups of layers, and slots of linear state; they take turns from case to case."""
POLICIES = ("decode_first", "prefill_first", "unified")
CHECK_INTERVAL = 50
"""Steps between two checks of all invariants, each of which looks at every block."""


class Soak:
    """One scheduler that is fed for ever; `run` returns how many steps it took. `seed` also chooses the kind of layers."""

    def __init__(self, policy: str, strategy: str, seed: int) -> None:
        windows, num_slots = LAYERS[seed % len(LAYERS)]
        self._draw = random.Random(seed)
        self._now_s = 0.0
        self._latency = LatencyModel()
        states = StateSlots(num_slots, 64) if num_slots else None
        self._blocks = BlockManager(600 * len(windows), 16, sliding_windows=windows, states=states)
        self._scheduler = Scheduler(
            SchedulerConfig(policy=policy, priority_strategy=strategy, max_num_seqs=64, max_num_batched_tokens=1024),
            self._blocks,
            StoppingChecker((), 1 << 30),
            latency=self._latency,
            clock=lambda: self._now_s,
        )
        self._unfinished: dict[str, int] = {}
        self._shared = [self._draw.randrange(1000) for _ in range(800)]

    def run(self, num_requests: int) -> int:
        """Serve `num_requests`, and stop when nothing is left."""
        num_steps = num_added = 0
        while num_added < num_requests or self._scheduler.has_work:
            while num_added < num_requests and len(self._unfinished) < 80:
                self._add(num_added)
                num_added += 1
            if self._draw.random() < 0.02 and self._unfinished:
                self._scheduler.abort([self._draw.choice(list(self._unfinished))])
            self._step()
            num_steps += 1
            if num_steps % CHECK_INTERVAL == 0:
                self._scheduler.check_integrity()
        self._check_end()
        return num_steps

    def _add(self, number: int) -> None:
        draw = self._draw
        prompt = self._shared[: draw.randrange(800)] + [draw.randrange(1000) for _ in range(draw.randrange(1, 60))]
        num_sequences = draw.choice([1, 1, 1, 1, 2, 3])
        request = Request(
            f"r{number}",
            prompt,
            SamplingParams(max_tokens=draw.randrange(0, 60), ignore_eos=True, n=num_sequences),
            arrival_time_s=self._now_s,
            priority=draw.randrange(-1, 2),
            deadline_s=self._now_s + 5 if draw.random() < 0.1 else None,
            is_offline=draw.random() < 0.2,
            objectives=ServiceObjectives(ttft_slo_ms=draw.choice([0.0, 500.0]), tpot_slo_ms=draw.choice([0.0, 30.0])),
        )
        self._scheduler.add_request(request)
        self._unfinished[request.request_id] = num_sequences

    def _step(self) -> None:
        group = self._scheduler.schedule()
        for delta in self._scheduler.update(group, self._execute(group)):
            if delta.finish_reason is not None:
                self._unfinished[delta.request_id] -= 1
                if self._unfinished[delta.request_id] == 0:
                    del self._unfinished[delta.request_id]

    def _execute(self, group: BatchGroup) -> list[ForwardOutput]:
        if group.is_empty:
            return []
        self._now_s += max(self._latency.step_s(StepShape.of(batch)) for batch in group.batches)
        return [ForwardOutput(np.full(sum(item.is_sampled for item in batch), 7, np.int32)) for batch in group.batches]

    def _check_end(self) -> None:
        self._scheduler.check_integrity()
        if self._unfinished:
            sys.exit(f"{len(self._unfinished)} requests got no end, {next(iter(self._unfinished))} for one.")
        if self._blocks.num_allocated_blocks:
            sys.exit(f"{self._blocks.num_allocated_blocks} blocks are still held.")


def main() -> None:
    """Run the soak, its requests spread over every policy and strategy."""
    parser = argparse.ArgumentParser(description="Soak of the scheduler in the simulator.")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="also print what each feature gains")
    options = parser.parse_args()
    if options.compare:
        setting = Setting(SchedulerConfig(), LatencyModel(), num_blocks=1024, block_size=16)
        print(compare(setting, None, options.seed), end="\n\n")
    cases = [(policy, strategy) for policy in POLICIES for strategy in STRATEGIES]
    share = -(-options.requests // len(cases))
    for number, (policy, strategy) in enumerate(cases):
        start = time.perf_counter()
        num_steps = Soak(policy, strategy, options.seed + number).run(share)
        print(
            f"{policy:<14}{strategy:<24}{share:>7} requests {num_steps:>7} steps {time.perf_counter() - start:>7.1f} s"
        )
    print(f"{share * len(cases)} requests, nothing left")


if __name__ == "__main__":
    main()
