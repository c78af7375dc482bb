"""Random adds, aborts and steps in tiny pools: invariants after each step, and answers that show no trace of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.beam_reference import beam_search, made_up_logprobs
from support.scheduler_harness import EOS, SchedulerHarness
from xllm_framework.request import NO_OBJECTIVES, ServiceObjectives
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.pause import PauseMode, PauseState
from xllm_scheduler.strategies import STRATEGIES

BLOCK_SIZE = 4
NUM_BLOCKS = 24
ALPHABET = st.integers(1, 3)
"""Few token values, so that prompts often begin alike."""


LAYERS = [
    *[{}] * 4,
    *[{"sliding_windows": (window,)} for window in (1, 5, 8, 30)],
    *[{"sliding_windows": windows} for windows in ((5, 0), (1, 0), (3, 3, 0), (8, 0, 0), (4, 9), (30, 0))],
    {"num_state_slots": 5},
    {"num_state_slots": 30, "state_stride": 8},
    {"sliding_windows": (5, 0), "num_state_slots": 12},
]
"""Kinds of layers: full attention alone, windows alone, both, and linear states beside either."""


class SchedulerStates(RuleBasedStateMachine):
    """Every request fits the pool alone, so that each must end as it would in a roomy one, unless aborted."""

    @initialize(
        policy=st.sampled_from(["decode_first", "prefill_first", "unified"]),
        priority_strategy=st.sampled_from(["priority", *STRATEGIES]),
        num_ranks=st.sampled_from([1, 1, 2]),
        enable_prefix_cache=st.booleans(),
        num_host_blocks=st.sampled_from([0, 0, 1, 10, 100]),
        layers=st.sampled_from(LAYERS),
        prefill_step_ms=st.sampled_from([0.0, 0.0, 1.0]),
        enable_in_batch_prefix=st.booleans(),
        enable_zero_evict=st.booleans(),
        zero_evict_output_tokens=st.sampled_from([4, 40]),
        enable_online_preempt_offline=st.booleans(),
        share_leftover_tokens=st.booleans(),
        chunked_match_frequency=st.sampled_from([0, 2, 50]),
        max_block_use=st.sampled_from([0.5, 0.95, 1.0]),
        latency=st.sampled_from([None, LatencyModel()]),
        default_tpot_slo_ms=st.sampled_from([0.0, 4.2, 50.0]),
        is_overlapped=st.booleans(),
        max_num_seqs=st.integers(1, 8),
        max_num_batched_tokens=st.sampled_from([1, 5, 16, 200]),
        max_prefill_chunk=st.sampled_from([0, 1, 3, 16]),
        can_copy_blocks=st.booleans(),
    )
    def start(self, can_copy_blocks: bool, layers: dict, **options) -> None:
        num_blocks = NUM_BLOCKS * len(layers.get("sliding_windows", (0,)))
        self.harness = SchedulerHarness(num_blocks=num_blocks, block_size=BLOCK_SIZE, **layers, **options)
        self.can_fork = "num_state_slots" not in layers
        self.max_beam_width = min(options["max_num_seqs"], options["max_num_batched_tokens"])
        for blocks, store in zip(self.harness.ranks, self.harness.stores, strict=True):
            blocks.can_copy_blocks = can_copy_blocks
            store.logprobs_after = made_up_logprobs

    @rule(
        prompt=st.lists(ALPHABET, min_size=1, max_size=20),
        max_tokens=st.integers(1, 6),
        width=st.integers(2, 4),
        is_offline=st.booleans(),
    )
    def add_beams(self, prompt, max_tokens, width, is_offline) -> None:
        if width <= self.max_beam_width and self.can_fork:
            request_id = f"b{len(self.harness.requests)}"
            self.harness.add(request_id, prompt, max_tokens=max_tokens, beam_width=width, n=2, is_offline=is_offline)

    @rule(
        prompt=st.lists(ALPHABET, min_size=1, max_size=50),
        max_tokens=st.integers(0, 40),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
        salt=st.sampled_from(["", "", "s"]),
        wants_prompt_logprobs=st.booleans(),
        is_offline=st.sampled_from([False, False, True]),
        objectives=st.sampled_from([NO_OBJECTIVES, ServiceObjectives(ttft_slo_ms=20.0, tpot_slo_ms=5.0)]),
    )
    def add(self, prompt, max_tokens, n, priority, salt, wants_prompt_logprobs, is_offline, objectives) -> None:
        number = len(self.harness.requests)
        self.harness.add(
            f"r{number}",
            prompt,
            seed=number,
            max_tokens=max_tokens,
            n=n,
            priority=priority,
            cache_salt=salt,
            prompt_logprobs=1 if wants_prompt_logprobs else None,
            is_offline=is_offline,
            objectives=objectives,
        )

    @rule(seconds=st.sampled_from([0.004, 0.03, 1.0]))
    def wait(self, seconds: float) -> None:
        self.harness.now_s += seconds

    @rule(mode=st.sampled_from(list(PauseMode)), count=st.integers(0, 3))
    def pause(self, mode: PauseMode, count: int) -> None:
        self.harness.scheduler.pause(mode)
        for _ in range(count):
            self.harness.step()

    @rule()
    def pause_until_nothing_runs(self) -> None:
        self.harness.scheduler.pause(PauseMode.WAIT)
        for _ in range(3000):
            if self.harness.scheduler.pause_state is PauseState.PAUSED:
                break
            self.harness.step()
        assert self.harness.scheduler.pause_state is PauseState.PAUSED
        if self.harness.is_idle:
            self.harness.check_idle()

    @rule()
    def resume(self) -> None:
        self.harness.scheduler.resume()

    @rule(data=st.data(), is_whole=st.booleans())
    def abort(self, data, is_whole: bool) -> None:
        self.harness.scheduler.abort(self._draw_targets(data, is_whole))

    @rule(data=st.data(), is_whole=st.booleans())
    def abort_in_flight(self, data, is_whole: bool) -> None:
        targets = self._draw_targets(data, is_whole)
        self.harness.step(before_update=lambda: self.harness.scheduler.abort(targets))

    @rule(data=st.data())
    def break_rows(self, data) -> None:
        """Let every row fail that is sampled from now on of one request."""
        for target in self._draw_targets(data, True):
            for store in self.harness.stores:
                store.fail_rows[target] = "broken"

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    def _draw_targets(self, data, is_whole: bool) -> list[str | tuple[str, int]]:
        sequences = [s for request in self.harness.requests.values() for s in request.sequences if not s.is_finished]
        if not sequences:
            return []
        victim = data.draw(st.sampled_from(sequences))
        return [victim.request_id if is_whole else (victim.request_id, victim.index)]

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "harness"):
            self.harness.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.scheduler.resume()
        self.harness.run()
        for request in self.harness.requests.values():
            if request.sampling.beam_width > 1:
                self._check_beams(request)
                continue
            for sequence in request.sequences:
                key = (request.request_id, sequence.index)
                expected = self.harness.expected(*key)
                last, tokens = self.harness.last[key], self.harness.tokens[key]
                is_broken = request.request_id in self.harness.store.fail_rows
                assert last.finish_reason in ("stop", "length", "abort", *["error"] * is_broken), last
                if last.finish_reason in ("abort", "error"):
                    assert tokens == expected[: len(tokens)]
                else:
                    assert tokens == expected
                    self._check_prompt_logprobs(request, sequence)

    def _check_beams(self, request) -> None:
        sampling, prompt = request.sampling, request.sequences[0].prompt_token_ids.tolist()
        window = self.harness.sliding_window
        wanted = beam_search(
            lambda context: made_up_logprobs(context[-window:]), prompt, sampling.beam_width, sampling.max_tokens, {EOS}
        )
        reasons = [self.harness.last[request.request_id, index].finish_reason for index in range(2)]
        got = [self.harness.tokens[request.request_id, index] for index in range(2)]
        if reasons[0] in ("abort", "error"):
            assert (reasons[1], got) == (reasons[0], [[], []])
            assert reasons[0] == "abort" or request.request_id in self.harness.store.fail_rows
        else:
            assert got == [tokens for tokens, _, _ in wanted[:2]]

    def _check_prompt_logprobs(self, request, sequence) -> None:
        entries = [
            delta.prompt_logprobs
            for delta in self.harness.deltas
            if (delta.request_id, delta.index) == (request.request_id, sequence.index) and delta.prompt_logprobs
        ]
        if request.sampling.prompt_logprobs is None or sequence.index > 0:
            assert entries == []
        else:
            (entry,) = entries
            assert [e and e.token_id for e in entry] == [None, *sequence.prompt_token_ids.tolist()[1:]]


SchedulerStates.TestCase.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerStates = SchedulerStates.TestCase


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_two_hundred_requests_with_random_aborts_in_24_blocks(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    harness = SchedulerHarness(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, policy=policy, max_num_batched_tokens=32, max_num_seqs=6
    )
    shared = [draw.randrange(1, 50) for _ in range(40)]
    for number in range(200):
        prompt = shared[: draw.randrange(0, 40)] + [draw.randrange(1, 50) for _ in range(draw.randrange(1, 12))]
        harness.add(f"r{number}", prompt, seed=number, max_tokens=draw.randrange(1, 40), n=draw.choice([1, 1, 1, 2]))
        for _ in range(draw.randrange(0, 8)):
            harness.step()
        if draw.random() < 0.2:
            harness.scheduler.abort([f"r{draw.randrange(number + 1)}"])
    harness.run()
    num_aborted = 0
    for key, last in harness.last.items():
        expected = harness.expected(*key)
        if last.finish_reason == "abort":
            num_aborted += 1
            expected = expected[: len(harness.tokens[key])]
        assert harness.tokens[key] == expected
    stats = harness.scheduler.stats()
    assert num_aborted > 5
    assert stats.num_preemptions > 5
    assert stats.prefix_cache_hits > 100
