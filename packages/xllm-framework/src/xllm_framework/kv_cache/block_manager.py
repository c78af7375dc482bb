"""Gives sequences the blocks that hold their KV. Knows nothing of queues, budgets, tensors or devices.

What may not be added here: who is preempted, and when (the scheduler decides); anything that looks at a token's value
(the prefix cache does); copies of KV (executors do).

For a sequence with blocks of `block_size` (bs) tokens, as half-open ranges of its block table:

    held        [0 ................................. len(block_table))      one reference each
    matched     [0 .. num_cached_tokens / bs)                               found in the prefix cache at admission
    published   [0 ......... num_computed_tokens // bs)                     full and computed: never written again
    written to               [num_computed_tokens // bs .... )              this sequence is the only writer

Full computed blocks may be shared because nobody writes to them; the rest is private, but for blocks that become full in
the coming step (`announce`). A sequence that shares blocks therefore continues in a block of its own, and no copy is
needed.

A model has one group of layers or several (`layer_groups`), each with a table of its own over the one pool; a place in a
sequence then is one block of each group. Those with sliding windows come first: their tables are the shortest, because they
grow step by step while a prompt is computed. Layers with linear state add slots (`state_slots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache.archive import BlockArchive
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from xllm_framework.kv_cache.forks import own_last_blocks
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier
from xllm_framework.kv_cache.integrity import check_blocks
from xllm_framework.kv_cache.known_blocks import KnownBlocks
from xllm_framework.kv_cache.prefix_cache import HashPrefixCache, PrefixCache
from xllm_framework.kv_cache.prefix_lookup import Fetchable, PrefixLookup
from xllm_framework.kv_cache.prefix_match import NO_MATCH, PrefixMatch
from xllm_framework.kv_cache.sliding_window import SlidingWindow
from xllm_framework.kv_cache.state_slots import StateSlots
from xllm_framework.kv_cache.table_group import TableGroup
from xllm_framework.kv_cache.tiers import CacheTiers, OnDevice, Place
from xllm_framework.request.sequence import Sequence

_NOTHING: Mapping[int, int] = {}


class BlockManager:
    """The block tables of all sequences over one pool.

    Args:
        num_blocks: blocks of the cache, the padding block 0 included.
        block_size: tokens a block.
        enable_prefix_cache: keep computed blocks for later prompts that begin alike.
        prefix_cache: the map to use; None takes `HashPrefixCache`. Further groups of layers take siblings of it.
        num_host_blocks: evicted blocks that host memory keeps, if the prefix cache is on; see `HostTier`.
        archive: keeps blocks, too, if the prefix cache is on; several block managers may share one.
        sliding_windows: one entry a group of layers, those with windows first: the tokens that a token attends to there,
            itself included; 0 for all. Blocks behind a window are given back, and prompts are admitted by what the group
            holds at once, not by their length.
        states: slots for layers with linear state; None where there are none. Nothing goes to host memory or archives
            then, and nothing can be forked.

    Raises:
        InvalidConfig: `num_blocks` is below 2, `block_size` below 1, or the pool too small for the windows.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_cache: bool = True,
        prefix_cache: PrefixCache | None = None,
        num_host_blocks: int = 0,
        archive: BlockArchive | None = None,
        sliding_windows: List[int] = (0,),
        states: StateSlots | None = None,
    ) -> None:
        if block_size < 1:
            raise InvalidConfig(f"block_size must be 1 or more, not {block_size}.")
        if states is not None and states.stride % block_size:
            raise InvalidConfig(
                f"States are saved every {states.stride} tokens: not a multiple of block_size {block_size}."
            )
        self.block_size = block_size
        self.enable_prefix_cache = enable_prefix_cache
        self.can_copy_blocks = False
        """Whether the executor obeys the copies of `prepare_writes`; set it before anything is forked."""
        self.states = states
        first: PrefixCache = HashPrefixCache(block_size) if prefix_cache is None else prefix_cache
        self._pool = BlockPool(num_blocks, lambda block_id: self._known.evict(block_id))
        self._groups = [
            TableGroup(
                index,
                self._pool,
                first.sibling() if index else first,
                block_size,
                SlidingWindow(window, block_size, num_blocks - 1, len(sliding_windows)) if window else None,
            )
            for index, window in enumerate(sliding_windows)
        ]
        self._windows = [group.window for group in self._groups]
        self._is_plain = self._windows == [None]
        """Whether every place is one block, and none is given back before the end."""
        self._tiers: CacheTiers | None = None
        if enable_prefix_cache and states is None and (num_host_blocks or archive is not None):
            self._tiers = CacheTiers(HostTier(num_host_blocks) if num_host_blocks else None, archive)
        self._lookup = PrefixLookup(self._groups, block_size, self._tiers, states)
        self._known = KnownBlocks(self._pool, self._groups, block_size, num_blocks, self._tiers)

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that sequences can hold in all: the pool without its padding block."""
        return self._pool.num_usable

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that only the prefix cache knows; they can be taken."""
        return self._pool.num_cached

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be allocated: free and cached ones."""
        return self._pool.num_available

    @property
    def num_allocated_blocks(self) -> int:
        """Blocks that sequences hold."""
        return self._pool.num_allocated

    def num_places(self, num_tokens: int) -> int:
        """Return how many places of a table `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    @property
    def max_chunk(self) -> int | None:
        """The most tokens of a prompt that a step may compute, or None: see `SlidingWindow`."""
        return min((window.max_chunk for window in self._windows if window is not None), default=None)

    @property
    def checkpoint_stride(self) -> int:
        """Tokens between places where a prompt's steps should end, so that its state is saved there; 0 for none."""
        return self.states.stride if self.states is not None and self.enable_prefix_cache else 0

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return how many blocks a sequence of `num_tokens` holds at most that is computed by chunks of `chunk`."""
        return sum(group.most_blocks(num_tokens, chunk) for group in self._groups)

    def footprint(self, num_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many blocks sequences of `num_tokens` tokens hold while they decode, shared ones counted for each."""
        num_blocks: npt.NDArray[np.int64] = np.sum([group.footprint(num_tokens) for group in self._groups], axis=0)
        return num_blocks

    def num_blocks_to_admit(self, sequence: Sequence, match: PrefixMatch, chunk: int) -> int:
        """Return how many available blocks the admission of `sequence` takes, cached ones that it shares included.

        `chunk` is how much of it the first step computes. Nobody is admitted without slots for his state: then it is more
        than there are.
        """
        if self.states is not None and not self.states.has_room:
            return self.num_usable_blocks + 1
        places = self._places_to_admit(sequence.num_tokens, len(match), chunk)
        return sum(places) - len(places) * len(match) + self.count_unheld(match)

    def num_held(self, sequence: Sequence) -> int:
        """Return how many blocks `sequence` holds."""
        if self._is_plain:
            return len(sequence.block_table)
        return sum(len(table) - table.count(PADDING_BLOCK) for table in sequence.tables)

    def match_prefix(self, sequence: Sequence, salt: str = "") -> PrefixMatch:
        """Return the blocks of the longest known prefix of `sequence`; takes nothing.

        Matches full blocks only, and leaves at least one token to compute, because a step must yield logits.
        """
        if not self.enable_prefix_cache:
            return NO_MATCH
        return self._lookup.on_device(sequence, salt)

    def rematch(self, sequence: Sequence, salt: str = "") -> int:
        """Replace blocks that `sequence`, which is in prefill, has yet to compute by known ones with the same content.

        Returns how many tokens it need not compute any more, and counts them as computed. What is only announced is left,
        and so is a sequence with a state.
        """
        if self.states is not None:
            return 0
        match = self.match_prefix(sequence, salt)
        while self.announcers(match):
            match = match.shortened()
        num_saved = len(match) * self.block_size - sequence.num_computed_tokens
        if num_saved <= 0:
            return 0
        first = sequence.num_computed_tokens // self.block_size
        tables, old = [], sequence.tables
        for own, matched in zip(old, match.tables, strict=True):
            self._pool.share(matched[first:])
            tables.append(own[:first] + matched[first:] + own[len(matched) :])
        for own in old:
            self._pool.release(own[first : len(match)])
        sequence.tables = tables
        sequence.num_computed_tokens += num_saved
        self._known.release_behind(sequence, sequence.num_computed_tokens, first)
        return num_saved

    def announce(self, sequence: Sequence, end: int, salt: str = "") -> None:
        """Let prompts that are admitted before `withdraw_announced` share blocks that the coming step only computes.

        Those are the blocks of `sequence` that become full when its first `end` tokens are computed. Safe because a
        step writes the KV of all its tokens, layer by layer, before it reads any. Nothing may be evicted meanwhile that
        holds such a block.
        """
        if self.enable_prefix_cache and self._is_plain and self.states is None:
            self._known.announce(sequence, end, salt)

    def announcers(self, match: PrefixMatch) -> frozenset[Sequence]:
        """Return the sequences that have yet to compute some of the blocks in `match`."""
        return self._known.announcers(match)

    def withdraw_announced(self) -> None:
        """Forget what was announced: from now on only what is computed can be found."""
        self._known.withdraw_announced()

    def count_unheld(self, match: PrefixMatch) -> int:
        """Return how many of the blocks in `match` nobody holds: so many fewer are available once they are shared."""
        return sum(self._pool.count_unheld(table) for table in match.tables)

    def count_private(self, sequence: Sequence) -> int:
        """Return how many blocks at the ends of the tables of `sequence` nobody else holds; O(that many)."""
        return sum(self._pool.count_private(table) for table in sequence.tables)

    def admit(
        self,
        sequence: Sequence,
        match: PrefixMatch,
        num_tokens: int,
        *,
        chunk: int | None = None,
        reserve: int = 0,
        salt: str = "",
        is_looked_up: bool = True,
    ) -> bool:
        """Give a sequence without blocks those of `match` and new ones for its first `num_tokens` tokens, or nothing.

        Groups with a sliding window get new ones for the next `chunk` tokens only. `match` is the fresh result of
        `match_prefix`, or `NO_MATCH`; with `is_looked_up`, what follows is brought from the tiers behind. Returns False,
        and changes nothing, unless at least `reserve` blocks stay available. Sets `num_cached_tokens` and
        `num_computed_tokens` to the tokens that need not be computed.
        """
        if self.states is not None and not self.states.has_room:
            return False
        chunk = num_tokens if chunk is None else chunk
        nothing: list[list[Place | None]] = [[] for _ in self._groups]
        behind = self._lookup.behind(sequence, match, self._known.announced) if is_looked_up else nothing
        if not self._fits(match, behind, num_tokens, chunk, reserve):
            behind = nothing
            if not self._fits(match, behind, num_tokens, chunk, reserve):
                return False
        start, end = len(match), len(match) + len(behind[0])
        for table in match.tables:
            self._pool.share(table)
        for places in behind:
            self._pool.share([place.block_id for place in places if isinstance(place, OnDevice)])
        num_places = self._places_to_admit(num_tokens, end, chunk)
        tables = []
        for index, places in enumerate(behind):
            table = list(match.tables[index]) if match.tables else []
            table += [self._known.bring(place) for place in places]
            tables.append(table + self._pool.allocate(num_places[index] - end))
        sequence.tables = tables
        sequence.num_cached_tokens = sequence.num_computed_tokens = end * self.block_size
        if end > start:
            self._known.insert(sequence, start * self.block_size, end * self.block_size, salt)
            self._known.release_behind(sequence, end * self.block_size, start)
        if self.states is not None:
            self.states.take(sequence, sequence.block_hashes[end - 1] if end else None)
        return True

    def take_moves(self) -> BlockMoves | None:
        """Return the moves between tiers, and of states, that are due before the step that was planned; None mostly."""
        if self.states is not None:
            copies = self.states.take_copies()
            return BlockMoves(states=copies) if copies else None
        return None if self._tiers is None else self._tiers.take_moves()

    def find_fetchable(self, sequence: Sequence, salt: str = "") -> Fetchable:
        """Return how many tokens of a new sequence are at hand, and what behind them an archive could bring."""
        if self._tiers is None or not self._tiers.has_archive:
            return Fetchable(0)
        self.match_prefix(sequence, salt)  # makes the keys
        return self._lookup.fetchable(sequence, self._tiers)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow the block tables of `sequence` to hold its first `num_tokens` tokens, or change nothing.

        Returns whether they hold them now. Tables that are long enough already are left alone.
        """
        num_places, tables = self.num_places(num_tokens), sequence.tables
        missing = [max(0, num_places - len(table)) for table in tables]
        if sum(missing) > self._pool.num_available:
            return False
        for table, count in zip(tables, missing, strict=True):
            if count:
                table.extend(self._pool.allocate(count))
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, which has no blocks, share all blocks of `parent`, an equal list of tokens.

        If the last ones are not full, `prepare_writes` must come before a step for either of them.
        """
        for table in parent.tables:
            self._pool.share(table)
        child.tables = [table.copy() for table in parent.tables]
        child.num_computed_tokens = parent.num_computed_tokens

    def count_writes(self, sequences: list[Sequence]) -> int:
        """Return how many tokens a step computes for `sequences` after `prepare_writes`, or a few more."""
        if self.can_copy_blocks:
            return len(sequences)
        size = self.block_size
        partial = [s.block_table[-1] for s in sequences if s.num_computed_tokens % size]
        return len(sequences) + (len(partial) - len(set(partial))) * (size - 1)

    def prepare_writes(self, sequences: list[Sequence]) -> list[list[tuple[int, int]]] | None:
        """Give each of `sequences`, all forks of one another, blocks of its own for its next token; or change nothing.

        Where blocks that are not full are shared, all but their last holder get others. Either their content is to be
        copied, (from, to) in the result, or, unless `can_copy_blocks`, its tokens count as not computed any more. Returns
        None, and changes nothing, if there are too few blocks.
        """
        return own_last_blocks(sequences, self._pool, self.block_size, len(self._groups), can_copy=self.can_copy_blocks)

    def publish(self, sequence: Sequence, start: int, end: int, salt: str = "") -> None:
        """Make the blocks that became full when tokens [start, end) were computed known to the prefix cache.

        Gives back what is behind a sliding window, and saves the state where that is due.
        """
        if self.enable_prefix_cache and start // self.block_size != end // self.block_size:
            self._known.insert(sequence, start, end, salt)
        if not self._is_plain:
            self._known.release_behind(sequence, end // self.block_size * self.block_size)
        stride = self.checkpoint_stride
        if stride and self.states is not None and end % stride == 0:
            self.states.save(sequence, sequence.block_hashes[end // self.block_size - 1])

    def free(self, sequence: Sequence) -> None:
        """Take all blocks from `sequence`; those that the prefix cache knows stay findable until they are evicted.

        Nothing of the sequence counts as computed afterwards. A sequence without blocks is left alone. An archive gets the
        blocks now rather than when they are evicted: those of a beginning that is always in use never would be.
        """
        tables = sequence.tables
        for table in tables:
            self._known.archive(table)
        for table in tables:
            self._pool.release(table)
        sequence.tables = [[]]
        sequence.num_computed_tokens = 0
        if self.states is not None:
            self.states.release(sequence)

    def check_integrity(self, sequences: Iterable[Sequence], in_flight: Mapping[int, int] = _NOTHING) -> None:
        """Check every invariant, where `sequences` are all that can hold blocks; O(blocks).

        `in_flight` says, by id of the sequence, how many tokens will be computed when the step in flight has ended.

        Raises:
            IntegrityError: names the first block or sequence that breaks one.
        """
        sequences = list(sequences)
        check_blocks(self._pool, self._groups, sequences, in_flight, self.block_size)
        if self._tiers is not None:
            self._tiers.check_integrity()
        if self.states is not None:
            self.states.check_integrity(sequences)

    def _places_to_admit(self, num_tokens: int, num_known: int, chunk: int) -> list[int]:
        """Return how long each group's table becomes at an admission behind `num_known` blocks."""
        most = self.num_places(num_tokens)
        next_step = self.num_places(min(num_tokens, num_known * self.block_size + chunk))
        return [most if window is None else next_step for window in self._windows]

    def _fits(
        self, match: PrefixMatch, behind: list[list[Place | None]], num_tokens: int, chunk: int, reserve: int
    ) -> bool:
        """Whether an admission leaves `reserve` blocks; `behind` as `PrefixLookup.behind` returns it."""
        end = len(match) + len(behind[0])
        num_new = sum(self._places_to_admit(num_tokens, end, chunk)) - end * len(self._groups)
        num_brought = sum(place is not None for places in behind for place in places)
        return num_new + num_brought + self.count_unheld(match) + reserve <= self._pool.num_available
