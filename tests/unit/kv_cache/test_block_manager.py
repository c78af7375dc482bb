"""The block manager keeps allocated + cached + free = pool, and never shows a sequence another one's tokens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xllm_framework.errors import IntegrityError, InvalidConfig
from xllm_framework.kv_cache import NO_MATCH, BlockManager
from xllm_framework.request import Sequence

NUM_BLOCKS = 12
SALTS = ("", "salt")


class BlockManagerStates(RuleBasedStateMachine):
    """Sequences come, compute, grow and go; a model of the slots' contents checks what each of them would read."""

    @initialize(block_size=st.integers(1, 4), enable_prefix_cache=st.booleans())
    def start(self, block_size: int, enable_prefix_cache: bool) -> None:
        self.manager = BlockManager(NUM_BLOCKS + 1, block_size, enable_prefix_cache=enable_prefix_cache)
        self.block_size = block_size
        self.live: list[tuple[Sequence, str]] = []
        self.contents: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
        self.num_created = 0

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30), salt=st.sampled_from(SALTS))
    def admit(self, prompt: list[int], salt: str) -> None:
        sequence = Sequence(f"s{self.num_created}", 0, prompt)
        self.num_created += 1
        before = self.state()
        matched = self.manager.match_prefix(sequence, salt)
        assert self.state() == before
        assert len(matched) * self.block_size < len(prompt)
        needed = self.manager.num_places(len(prompt)) - len(matched)
        if self.manager.admit(sequence, matched, len(prompt)):
            assert sequence.block_table[: len(matched)] == (matched.tables[0] if matched.tables else [])
            assert sequence.num_computed_tokens == sequence.num_cached_tokens == len(matched) * self.block_size
            self.live.append((sequence, salt))
        else:
            assert self.state() == before
            assert sequence.block_table == []
            assert needed + len(matched) > self.manager.num_available_blocks

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data(), count=st.integers(1, 9))
    def compute(self, data, count: int) -> None:
        sequence, salt = data.draw(st.sampled_from(self.live))
        start = sequence.num_computed_tokens
        end = min(start + count, sequence.num_tokens, len(sequence.block_table) * self.block_size)
        tokens = sequence.token_ids.tolist()
        for position in range(start, end):
            slot = (sequence.block_table[position // self.block_size], position % self.block_size)
            self.contents[slot] = (salt, tuple(tokens[: position + 1]))
        sequence.num_computed_tokens = end
        self.manager.publish(sequence, start, end, salt)

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data(), token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, data, token_ids: list[int]) -> None:
        sequence, _ = data.draw(st.sampled_from(self.live))
        for token_id in token_ids:
            sequence.append(token_id)
        before, table = self.state(), list(sequence.block_table)
        missing = self.manager.num_places(sequence.num_tokens) - len(table)
        could = missing <= self.manager.num_available_blocks
        assert self.manager.allocate(sequence, sequence.num_tokens) == could
        assert sequence.block_table[: len(table)] == table
        assert len(sequence.block_table) == len(table) + (missing if could else 0)
        if not could:
            assert self.state() == before

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def free(self, data) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        sequence, _ = self.live.pop(index)
        self.manager.free(sequence)
        self.manager.free(sequence)
        assert sequence.block_table == []
        assert sequence.num_computed_tokens == 0

    @invariant()
    def is_consistent(self) -> None:
        if not hasattr(self, "manager"):
            return
        manager = self.manager
        manager.check_integrity([sequence for sequence, _ in self.live])
        assert manager.num_allocated_blocks + manager.num_cached_blocks + manager.num_free_blocks == NUM_BLOCKS
        if not manager.enable_prefix_cache:
            assert manager.num_cached_blocks == 0
        for sequence, salt in self.live:
            tokens = sequence.token_ids.tolist()
            for position in range(sequence.num_computed_tokens):
                slot = (sequence.block_table[position // self.block_size], position % self.block_size)
                assert self.contents[slot] == (salt, tuple(tokens[: position + 1]))

    def state(self) -> tuple[int, int, int]:
        manager = self.manager
        return manager.num_allocated_blocks, manager.num_cached_blocks, manager.num_free_blocks

    def teardown(self) -> None:
        for sequence, _ in getattr(self, "live", []):
            self.manager.free(sequence)
        if hasattr(self, "manager"):
            assert self.manager.num_allocated_blocks == 0


BlockManagerStates.TestCase.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)
TestBlockManagerStates = BlockManagerStates.TestCase


def computed(manager: BlockManager, tokens: list[int], salt: str = "") -> Sequence:
    """Return an admitted sequence, computed and published whole."""
    sequence = Sequence("s", 0, tokens)
    assert manager.admit(sequence, manager.match_prefix(sequence, salt), len(tokens))
    start, sequence.num_computed_tokens = sequence.num_computed_tokens, len(tokens)
    manager.publish(sequence, start, len(tokens), salt)
    return sequence


def num_matched(manager: BlockManager, tokens: list[int], salt: str = "") -> int:
    return len(manager.match_prefix(Sequence("probe", 0, tokens), salt))


def test_the_deepest_block_is_evicted_first() -> None:
    manager = BlockManager(9, 2)
    manager.free(computed(manager, list(range(16))))
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (8, 0)
    for taken, left in ((1, 7), (2, 5)):
        assert manager.admit(Sequence("t", 0, [99] * 2 * taken), NO_MATCH, 2 * taken)
        assert num_matched(manager, [*range(16), 0]) == left


def test_least_recently_used_prompts_are_evicted_first_and_a_match_renews() -> None:
    manager = BlockManager(9, 2)
    old, new = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]
    manager.free(computed(manager, old))
    manager.free(computed(manager, new))
    manager.free(computed(manager, [*old, 0]))
    assert manager.admit(Sequence("t", 0, [99] * 10), NO_MATCH, 10)
    assert num_matched(manager, [*old, 0]) == 3
    assert num_matched(manager, [*new, 0]) == 0


def test_a_reserve_is_left_alone() -> None:
    manager = BlockManager(9, 2)
    assert not manager.admit(Sequence("s", 0, [1] * 12), NO_MATCH, 12, reserve=3)
    assert manager.admit(Sequence("s", 0, [1] * 12), NO_MATCH, 12, reserve=2)


def test_blocks_of_equal_content_are_published_once() -> None:
    manager = BlockManager(9, 2)
    tokens = [1, 2, 3, 4]
    first, second = Sequence("a", 0, tokens), Sequence("b", 0, tokens)
    for sequence in (first, second):
        assert manager.admit(sequence, manager.match_prefix(sequence), 4)
        sequence.num_computed_tokens = 4
    for sequence in (first, second):
        manager.publish(sequence, 0, 4)
    manager.free(first)
    manager.free(second)
    manager.check_integrity([])
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (2, 6)


@pytest.mark.parametrize(("num_blocks", "block_size", "name"), [(1, 4, "num_blocks"), (4, 0, "block_size")])
def test_impossible_sizes_are_named(num_blocks: int, block_size: int, name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        BlockManager(num_blocks, block_size)


def test_integrity_errors_name_what_is_wrong() -> None:
    manager = BlockManager(9, 2)
    sequence = computed(manager, [1, 2, 3, 4])
    with pytest.raises(IntegrityError, match="1 references and 0 holders"):
        manager.check_integrity([])
    with pytest.raises(IntegrityError, match="1 references and 2 holders"):
        manager.check_integrity([sequence, sequence])
    sequence.num_computed_tokens = 1
    with pytest.raises(IntegrityError, match="still written to"):
        manager.check_integrity([sequence])
    sequence.num_computed_tokens = 5
    with pytest.raises(IntegrityError, match="more tokens than its blocks hold"):
        manager.check_integrity([sequence])
    sequence.num_computed_tokens = 4
    sequence.block_table.append(0)
    with pytest.raises(IntegrityError, match="padding block"):
        manager.check_integrity([sequence])
