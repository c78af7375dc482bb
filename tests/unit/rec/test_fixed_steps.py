"""The scheduler of searches: batches, order, limits, deadlines, and blocks that always add up."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from xllm_framework.errors import InvalidRequest, OutOfBlocks, QueueFull
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request.rec_messages import AddSearch, SearchParams
from xllm_scheduler.fixed_steps import FixedStepsLimits, FixedStepsScheduler

LIMITS = FixedStepsLimits(max_num_seqs=4, max_num_batched_tokens=40, max_num_beams=32, max_num_waiting=6)


def message(request_id: str, prompt: list[int], arrival_s: float = 0.0, **fields) -> AddSearch:
    params = SearchParams(
        **{name: fields.pop(name) for name in ("num_rounds", "beam_width", "is_sampled") if name in fields}
    )
    return AddSearch(request_id, prompt, params, arrival_s, **fields)


def scheduler(num_blocks: int = 100, **limits) -> tuple[FixedStepsScheduler, BlockManager]:
    blocks = BlockManager(num_blocks, 4)
    fields = {name: getattr(LIMITS, name) for name in LIMITS.__slots__}
    return FixedStepsScheduler(FixedStepsLimits(**fields | limits), blocks), blocks


def ids(batch) -> list[str]:
    return [search.message.request_id for search in batch]


def test_widths_may_differ_but_not_rounds_or_modes():
    searches, _ = scheduler()
    searches.add(message("a", [1] * 5, beam_width=3))
    searches.add(message("b", [2] * 5, beam_width=9))
    searches.add(message("c", [3] * 5, beam_width=3, num_rounds=2))
    searches.add(message("d", [4] * 5, beam_width=3, num_rounds=2, is_sampled=True))
    assert [ids(searches.schedule(0.0).batch) for _ in range(4)] == [["a", "b"], ["c"], ["d"], []]


def test_priorities_go_before_arrivals():
    searches, _ = scheduler(max_num_seqs=1)
    searches.add(message("late", [1], 2.0, beam_width=1))
    searches.add(message("early", [1], 1.0, beam_width=1))
    searches.add(message("urgent", [1], 3.0, beam_width=1, priority=-1))
    assert [ids(searches.schedule(0.0).batch) for _ in range(3)] == [["urgent"], ["early"], ["late"]]


def test_limits_end_a_batch():
    searches, _ = scheduler()
    searches.add(message("a", [1] * 30, beam_width=4))
    searches.add(message("b", [2] * 30, beam_width=4))
    searches.add(message("wide", [3] * 3, beam_width=30))
    assert ids(searches.schedule(0.0).batch) == ["a"], "tokens"
    assert ids(searches.schedule(0.0).batch) == ["b"], "beams"
    assert ids(searches.schedule(0.0).batch) == ["wide"]


def test_what_can_never_run_is_refused():
    searches, _ = scheduler(num_blocks=4)
    with pytest.raises(OutOfBlocks, match="needs 4 blocks, but the cache has 3"):
        searches.add(message("a", [1] * 13, beam_width=1))
    with pytest.raises(InvalidRequest, match="32 beams"):
        searches.add(message("a", [1], beam_width=33))
    for n in range(6):
        searches.add(message(str(n), [1], beam_width=1))
    with pytest.raises(QueueFull):
        searches.add(message("x", [1], beam_width=1))


def test_deadlines_and_aborts():
    searches, blocks = scheduler()
    searches.add(message("late", [1], beam_width=1, deadline_s=1.0))
    searches.add(message("given up", [1], beam_width=1))
    searches.add(message("good", [1], beam_width=1))
    searches.abort(["given up", "unknown"])
    decision = searches.schedule(2.0)
    assert (ids(decision.expired), ids(decision.batch)) == (["late"], ["good"])
    searches.abort(["good"])
    assert decision.batch[0].is_aborted
    searches.finish(decision.batch, is_computed=True)
    assert blocks.num_allocated_blocks == 0


def test_computed_prompts_are_found_again_and_failed_ones_are_not():
    searches, _ = scheduler()
    for is_computed, expected in ((False, 0), (True, 0), (True, 8)):
        searches.add(message("a", list(range(10)), beam_width=1))
        batch = searches.schedule(0.0).batch
        assert batch[0].sequence.num_cached_tokens == expected
        searches.finish(batch, is_computed=is_computed)


class SearchesOverABlockPool(RuleBasedStateMachine):
    """Random searches come, run, end and are given up; nothing may leak, starve or run twice."""

    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.searches, self.blocks = scheduler(num_blocks=12)
        self.waiting: set[str] = set()
        self.count = 0

    @rule(length=st.integers(1, 40), width=st.integers(1, 20), rounds=st.integers(1, 2), common=st.booleans())
    def add(self, length: int, width: int, rounds: int, common: bool) -> None:
        self.count += 1
        prompt = [7] * length if common else [self.count] * length
        try:
            self.searches.add(message(str(self.count), prompt, self.count, beam_width=width, num_rounds=rounds))
        except QueueFull:
            assert len(self.waiting) == LIMITS.max_num_waiting
        else:
            self.waiting.add(str(self.count))

    @rule(target=batches)
    def begin(self):
        batch = self.searches.schedule(0.0).batch
        started = set(ids(batch))
        assert started <= self.waiting
        self.waiting -= started
        assert sum(search.params.beam_width for search in batch) <= LIMITS.max_num_beams
        if not batch and self.searches.num_running == 0:
            assert not self.waiting, "an idle pool must let the first search run"
        return multiple(batch) if batch else multiple()

    @rule(batch=consumes(batches), is_computed=st.booleans())
    def end(self, batch, is_computed: bool) -> None:
        self.searches.finish(batch, is_computed=is_computed)

    @rule(number=st.integers(1, 30))
    def give_up(self, number: int) -> None:
        self.searches.abort([str(number)])
        self.waiting.discard(str(number))

    @invariant()
    def blocks_add_up(self) -> None:
        self.searches.check_integrity()
        assert self.searches.num_waiting == len(self.waiting)


TestSearchesOverABlockPool = SearchesOverABlockPool.TestCase
TestSearchesOverABlockPool.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
