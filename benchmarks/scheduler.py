"""Host time of one decode step: schedule, build the input, update; and of a prefix look-up. No torch, no device.

    python benchmarks/scheduler.py [--check] [--profile]

Each figure is the best of several rounds' medians, because a shared machine only ever makes a step slower. Short and long
sequences take turns step by step; whether length matters is the median, over all pairs of neighbouring steps, of how much
longer the long one took, so that a machine that drifts drifts for both. `--check` exits with 1 where a goal is missed;
`--profile` adds the ten functions that take most time at 256 sequences.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from xllm_framework.batch import ForwardInputBuilder, ForwardOutput
from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import NO_MATCH, BlockManager
from xllm_framework.request import Request, SamplingParams, Sequence, StoppingChecker
from xllm_scheduler import Scheduler

BLOCK_SIZE = 16
SHORT, LONG = 128, 4096
LOOKUP_TOKENS = 32768
STEPS = 15
ROUNDS = 20
GOALS_MS = {32: 0.2, 256: 1.0}
LOOKUP_GOAL_MS = 3.0
LENGTH_TOLERANCE = 1.10
"""A step over long sequences may seem this much slower than one over short ones before it counts as slower."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of one step's host work."""

    schedule: float
    build: float
    update: float

    @property
    def total(self) -> float:
        """All three together."""
        return self.schedule + self.build + self.update


class DecodeLoop:
    """A scheduler with `num_seqs` sequences of `num_tokens` tokens that all decode."""

    def __init__(self, num_seqs: int, num_tokens: int) -> None:
        num_blocks = num_seqs * (num_tokens // BLOCK_SIZE + STEPS * (ROUNDS + 2) // BLOCK_SIZE + 4) * 5 // 4
        config = SchedulerConfig(max_num_seqs=num_seqs, max_num_batched_tokens=max(num_seqs * num_tokens, 1))
        self._scheduler = Scheduler(config, BlockManager(num_blocks, BLOCK_SIZE), StoppingChecker((2,), 1 << 20))
        self._builder = ForwardInputBuilder(BLOCK_SIZE, (2,))
        random = np.random.default_rng(0)
        sampling = SamplingParams(max_tokens=1 << 19, temperature=0.7, top_p=0.9)
        for number in range(num_seqs):
            prompt = random.integers(3, 30000, num_tokens)
            self._scheduler.add_request(Request(f"r{number}", prompt, sampling, arrival_time_s=0.0))
        self.step()

    def step(self) -> StepTimes:
        """Run one step against an executor that takes no time."""
        start = time.perf_counter()
        group = self._scheduler.schedule()
        scheduled = time.perf_counter()
        forward_input = self._builder.build(group.batches[0])
        built = time.perf_counter()
        output = ForwardOutput(np.full(len(forward_input.sample_rows), 7, np.int32))
        executed = time.perf_counter()
        self._scheduler.update(group, [output])
        end = time.perf_counter()
        return StepTimes(1e3 * (scheduled - start), 1e3 * (built - scheduled), 1e3 * (end - executed))


def measure_steps(num_seqs: int) -> tuple[dict[int, StepTimes], float]:
    """Return the best round's median step by sequence length, and the median ratio of a long step to its short neighbour."""
    loops = {num_tokens: DecodeLoop(num_seqs, num_tokens) for num_tokens in (SHORT, LONG)}
    rounds: dict[int, list[StepTimes]] = {num_tokens: [] for num_tokens in loops}
    ratios = []
    for number in range(ROUNDS):
        order = (SHORT, LONG) if number % 2 else (LONG, SHORT)
        steps: dict[int, list[StepTimes]] = {num_tokens: [] for num_tokens in loops}
        for _ in range(STEPS):
            for num_tokens in order:
                steps[num_tokens].append(loops[num_tokens].step())
            ratios.append(steps[LONG][-1].total / steps[SHORT][-1].total)
        for num_tokens, times in steps.items():
            medians = (statistics.median(getattr(step, name) for step in times) for name in StepTimes.__slots__)
            rounds[num_tokens].append(StepTimes(*medians))
    best = {num_tokens: min(times, key=lambda step: step.total) for num_tokens, times in rounds.items()}
    return best, statistics.median(ratios)


def measure_lookup() -> float:
    """Return milliseconds to hash, find and share a prompt of `LOOKUP_TOKENS` tokens that is cached whole."""
    manager = BlockManager(2 * LOOKUP_TOKENS // BLOCK_SIZE, BLOCK_SIZE)
    prompt = np.random.default_rng(0).integers(3, 30000, LOOKUP_TOKENS).astype(np.int32)
    first = Sequence("first", 0, prompt)
    manager.admit(first, NO_MATCH, LOOKUP_TOKENS)
    first.num_computed_tokens = LOOKUP_TOKENS
    manager.publish(first, 0, LOOKUP_TOKENS)
    manager.free(first)
    durations = []
    for _ in range(ROUNDS):
        sequence = Sequence("again", 0, prompt)
        start = time.perf_counter()
        manager.admit(sequence, manager.match_prefix(sequence), LOOKUP_TOKENS)
        durations.append(1e3 * (time.perf_counter() - start))
        if sequence.num_cached_tokens != LOOKUP_TOKENS - BLOCK_SIZE:
            sys.exit("The prefix look-up found less than was cached.")
        manager.free(sequence)
    return min(durations)


def print_profile(num_seqs: int) -> None:
    """Print the ten functions that take most time of their own over 200 steps."""
    loop = DecodeLoop(num_seqs, SHORT)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(200):
        loop.step()
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(10)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    print(f"\nTop ten by own time, 200 steps of {num_seqs} sequences:")
    print("\n".join(lines[-11:]))


def main() -> int:
    """Print the table; return 1 if `--check` is given and a goal is missed."""
    parser = argparse.ArgumentParser(description="Host time of one decode step and of a prefix look-up.")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--profile", action="store_true", help="also print the ten most expensive functions")
    options = parser.parse_args()
    missed = []
    print(f"{'sequences':>9} {'tokens':>6} {'schedule':>9} {'build':>9} {'update':>9} {'total ms':>9}  goal")
    ratio = 1.0
    for num_seqs in (1, 32, 256):
        by_length, ratio = measure_steps(num_seqs)
        for num_tokens, times in by_length.items():
            goal = GOALS_MS.get(num_seqs)
            if goal is not None and times.total > goal:
                missed.append(f"{num_seqs} sequences of {num_tokens} tokens: {times.total:.3f} ms > {goal} ms")
            print(
                f"{num_seqs:>9} {num_tokens:>6} {times.schedule:>9.3f} {times.build:>9.3f} {times.update:>9.3f} "
                f"{times.total:>9.3f}  {'' if goal is None else f'<= {goal}'}"
            )
    print(f"256 sequences of {LONG} tokens against {SHORT}, median of {STEPS * ROUNDS} pairs: {ratio:.3f}x")
    if ratio > LENGTH_TOLERANCE:
        missed.append(f"a step over long sequences takes {ratio:.2f} times as long as one over short ones")
    lookup = measure_lookup()
    print(f"prefix look-up of {LOOKUP_TOKENS} tokens: {lookup:.3f} ms  <= {LOOKUP_GOAL_MS}")
    if lookup > LOOKUP_GOAL_MS:
        missed.append(f"prefix look-up: {lookup:.3f} ms > {LOOKUP_GOAL_MS} ms")
    if options.profile:
        print_profile(256)
    for line in missed:
        print(f"missed: {line}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
