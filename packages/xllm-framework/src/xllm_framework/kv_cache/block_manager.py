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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile

from xllm_framework.errors import IntegrityError, InvalidConfig
from xllm_framework.kv_cache.archive import BlockArchive
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier
from xllm_framework.kv_cache.prefix_cache import HashPrefixCache, PrefixCache
from xllm_framework.kv_cache.sliding_window import SlidingWindow
from xllm_framework.kv_cache.tiers import CacheTiers, Source
from xllm_framework.request.sequence import Sequence

_NOTHING: Mapping[int, int] = {}


class BlockManager:
    """The block tables of all sequences over one pool.

    Args:
        num_blocks: blocks of the cache, the padding block 0 included.
        block_size: tokens a block.
        enable_prefix_cache: keep computed blocks for later prompts that begin alike.
        prefix_cache: the map to use; None takes `HashPrefixCache`.
        num_host_blocks: evicted blocks that host memory keeps, if the prefix cache is on; see `HostTier`.
        archive: keeps blocks, too, if the prefix cache is on; several block managers may share one.
        sliding_window: tokens that a token attends to, itself included, in every layer of the model; 0 for all. Blocks behind
            the window are given back, prompts are admitted by what they hold at once, not by their length, and nothing goes
            to host memory or archives.

    Raises:
        InvalidConfig: `num_blocks` is below 2, or `block_size` below 1.
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
        sliding_window: int = 0,
    ) -> None:
        if block_size < 1:
            raise InvalidConfig(f"block_size must be 1 or more, not {block_size}.")
        self.block_size = block_size
        self.enable_prefix_cache = enable_prefix_cache
        self.can_copy_blocks = False
        """Whether the executor obeys the copies of `prepare_writes`; set it before anything is forked."""
        self._prefix_cache: PrefixCache = HashPrefixCache(block_size) if prefix_cache is None else prefix_cache
        self._tiers: CacheTiers | None = None
        if enable_prefix_cache and not sliding_window and (num_host_blocks or archive is not None):
            self._tiers = CacheTiers(HostTier(num_host_blocks) if num_host_blocks else None, archive)
        self._pool = BlockPool(num_blocks, self._prefix_cache.evict if self._tiers is None else self._offload)
        self._window = SlidingWindow(sliding_window, block_size, num_blocks - 1) if sliding_window else None
        self._announced: dict[int, Sequence] = {}

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

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    @property
    def max_chunk(self) -> int | None:
        """The most tokens of a prompt that a step may compute, or None: see `SlidingWindow`."""
        return None if self._window is None else self._window.max_chunk

    def num_tokens_to_admit(self, num_tokens: int, num_cached: int, chunk: int) -> int:
        """Return for how many tokens a sequence of `num_tokens` needs blocks when it is admitted.

        `num_cached` of them are cached, and the first step computes `chunk` more.
        """
        return num_tokens if self._window is None else min(num_tokens, num_cached + chunk)

    def num_held(self, sequence: Sequence) -> int:
        """Return how many blocks `sequence` holds."""
        if self._window is None:
            return len(sequence.block_table)
        return len(sequence.block_table) - sequence.block_table.count(PADDING_BLOCK)

    def match_prefix(self, sequence: Sequence, salt: str = "") -> list[int]:
        """Return the blocks of the longest known prefix of `sequence`; takes nothing.

        Matches full blocks only, and leaves at least one token to compute, because a step must yield logits. The
        result is valid until the next call that allocates or frees.
        """
        if not self.enable_prefix_cache:
            return []
        max_blocks = (sequence.num_tokens - 1) // self.block_size
        if self._window is not None:
            cache, keys = self._prefix_cache, sequence.block_hashes
            cache.extend_keys(sequence.token_ids, keys, salt, max_blocks, sequence.media)
            return self._window.match(keys[:max_blocks], cache.block_of)
        return self._prefix_cache.match(sequence.token_ids, sequence.block_hashes, salt, max_blocks, sequence.media)

    def rematch(self, sequence: Sequence, salt: str = "") -> int:
        """Replace blocks that `sequence`, which is in prefill, has yet to compute by known ones with the same content.

        Returns how many tokens it need not compute any more, and counts them as computed. What is only announced is left.
        """
        matched = list(takewhile(lambda block_id: block_id not in self._announced, self.match_prefix(sequence, salt)))
        num_matched_tokens = len(matched) * self.block_size
        num_saved = num_matched_tokens - sequence.num_computed_tokens
        if num_saved <= 0:
            return 0
        first, old = sequence.num_computed_tokens // self.block_size, sequence.block_table
        self._pool.share(matched[first:])
        sequence.block_table = old[:first] + matched[first:] + old[len(matched) :]
        self._pool.release(old[first : len(matched)])
        sequence.num_computed_tokens = num_matched_tokens
        if self._window is not None:
            for index in range(min(first, self._window.num_behind(num_matched_tokens))):
                self._release_place(sequence.block_table, index)
        return num_saved

    def announce(self, sequence: Sequence, end: int, salt: str = "") -> None:
        """Let prompts that are admitted before `withdraw_announced` share blocks that the coming step only computes.

        Those are the blocks of `sequence` that become full when its first `end` tokens are computed. Safe because a
        step writes the KV of all its tokens, layer by layer, before it reads any. Nothing may be evicted meanwhile that
        holds such a block.
        """
        first = sequence.num_computed_tokens // self.block_size
        if not self.enable_prefix_cache or self._window is not None or end // self.block_size == first:
            return
        for block_id in self._prefix_cache.insert(
            sequence.token_ids[:end], sequence.block_hashes, salt, sequence.block_table, first, sequence.media
        ):
            self._announced[block_id] = sequence

    def announcers(self, matched: list[int]) -> frozenset[Sequence]:
        """Return the sequences that have yet to compute some of the blocks in `matched`."""
        announced = self._announced
        if not announced:
            return frozenset()
        return frozenset(announced[block_id] for block_id in matched if block_id in announced)

    def withdraw_announced(self) -> None:
        """Forget what was announced: from now on only what is computed can be found."""
        for block_id in self._announced:
            self._prefix_cache.evict(block_id)
        self._announced.clear()

    def count_unheld(self, matched: list[int]) -> int:
        """Return how many of the blocks in `matched` nobody holds: so many fewer are available once they are shared."""
        return self._pool.count_unheld(matched)

    def count_private(self, sequence: Sequence) -> int:
        """Return how many blocks at the end of the table of `sequence` nobody else holds; O(that many)."""
        count = 0
        for block_id in reversed(sequence.block_table):
            if self._pool.num_references(block_id) > 1:
                break
            count += 1
        return count

    def admit(
        self,
        sequence: Sequence,
        matched: list[int],
        num_tokens: int,
        *,
        reserve: int = 0,
        salt: str = "",
        is_looked_up: bool = True,
    ) -> bool:
        """Give a sequence without blocks the `matched` ones and new ones for its first `num_tokens` tokens, or nothing.

        `matched` is the fresh result of `match_prefix`, or empty. Returns False, and changes nothing, unless at least
        `reserve` blocks stay available. Sets `num_cached_tokens` and `num_computed_tokens` to the matched tokens.
        """
        num_new = self.num_blocks_for(num_tokens) - len(matched)
        if num_new + self._pool.count_unheld(matched) + reserve > self._pool.num_available:
            return False
        self._pool.share(matched)
        sources = self._tiers.find(self._keys_behind(sequence, len(matched))) if self._tiers and is_looked_up else []
        sequence.block_table = matched + self._pool.allocate(num_new)
        sequence.num_cached_tokens = len(matched) * self.block_size
        sequence.num_computed_tokens = sequence.num_cached_tokens
        if self._tiers is not None and sources:
            self._restore(self._tiers, sequence, sources, len(matched), salt)
        return True

    def take_moves(self) -> BlockMoves | None:
        """Return the moves between tiers that are due before the step that was planned; None mostly."""
        return None if self._tiers is None else self._tiers.take_moves()

    def find_fetchable(self, sequence: Sequence, salt: str = "") -> tuple[int, list[bytes]]:
        """Return how many tokens of a new sequence are at hand, and the keys of the blocks behind that an archive could bring."""
        if self._tiers is None:
            return 0, []
        keys = self._keys_behind(sequence, len(self.match_prefix(sequence, salt)))
        fetchable = self._tiers.find_fetchable(keys)
        if not fetchable:
            return 0, []
        num_at_hand = (sequence.num_tokens - 1) // self.block_size - len(keys) + keys.index(fetchable[0])
        return num_at_hand * self.block_size, fetchable

    def _offload(self, block_id: int) -> None:
        """Keep the content of an evicted block in the tiers behind."""
        if self._tiers is not None:
            self._tiers.offload(self._prefix_cache.key_of(block_id), block_id)
        self._prefix_cache.evict(block_id)

    def _keys_behind(self, sequence: Sequence, num_matched: int) -> list[bytes]:
        """Return the keys of what follows the `num_matched` blocks, so that at least one token is left."""
        return sequence.block_hashes[num_matched : (sequence.num_tokens - 1) // self.block_size]

    def _restore(
        self, tiers: CacheTiers, sequence: Sequence, sources: list[Source], num_matched: int, salt: str
    ) -> None:
        """Bring `sources` into the blocks behind the matched ones; their tokens count as cached and computed."""
        start = sequence.num_computed_tokens
        end = start + len(sources) * self.block_size
        tiers.restore(sources, sequence.block_table[num_matched : num_matched + len(sources)])
        sequence.num_cached_tokens = sequence.num_computed_tokens = end
        self._insert(sequence, start, end, salt)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow the block table of `sequence` to hold its first `num_tokens` tokens, or change nothing.

        Returns whether it holds them now. A table that is long enough already is left alone.
        """
        table = sequence.block_table
        if num_tokens <= len(table) * self.block_size:
            return True
        num_missing = self.num_blocks_for(num_tokens) - len(table)
        if num_missing > self._pool.num_available:
            return False
        table.extend(self._pool.allocate(num_missing))
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, which has no blocks, share all blocks of `parent`, an equal list of tokens.

        If the last one is not full, `prepare_writes` must come before a step for either of them.
        """
        self._pool.share(parent.block_table)
        child.block_table = parent.block_table.copy()
        child.num_computed_tokens = parent.num_computed_tokens

    def count_writes(self, sequences: list[Sequence]) -> int:
        """Return how many tokens a step computes for `sequences` after `prepare_writes`, or a few more."""
        if self.can_copy_blocks:
            return len(sequences)
        size = self.block_size
        partial = [s.block_table[-1] for s in sequences if s.num_computed_tokens % size]
        return len(sequences) + (len(partial) - len(set(partial))) * (size - 1)

    def prepare_writes(self, sequences: list[Sequence]) -> list[tuple[int, int] | None] | None:
        """Give each of `sequences`, all forks of one another, a block of its own for its next token; or change nothing.

        Where a block that is not full is shared, all but its last holder get another one. Either its content is to be
        copied, (from, to) in the result, or, unless `can_copy_blocks`, its tokens count as not computed any more. Returns
        None, and changes nothing, if there are too few blocks.
        """
        size, pool = self.block_size, self._pool
        left = Counter(s.block_table[-1] for s in sequences if s.num_computed_tokens < len(s.block_table) * size)
        num_needed = len(sequences) - len(left)
        if num_needed > pool.num_available:
            return None
        fresh = iter(pool.allocate(num_needed))
        copies: list[tuple[int, int] | None] = []
        for sequence in sequences:
            copy = None
            table = sequence.block_table
            if sequence.num_computed_tokens == len(table) * size:
                table.append(next(fresh))
            elif left[table[-1]] > 1:
                old, new = table[-1], next(fresh)
                left[old] -= 1
                pool.release([old])
                sequence.block_table = [*table[:-1], new]
                if self.can_copy_blocks:
                    copy = (old, new)
                else:
                    sequence.num_computed_tokens = (len(table) - 1) * size
            copies.append(copy)
        return copies

    def publish(self, sequence: Sequence, start: int, end: int, salt: str = "") -> None:
        """Make the blocks that became full when tokens [start, end) were computed known to the prefix cache.

        With a sliding window, gives back what is behind it.
        """
        self._insert(sequence, start, end, salt)
        if self._window is not None:
            self._release_behind(sequence, self._window.num_behind(end))

    def _insert(self, sequence: Sequence, start: int, end: int, salt: str) -> None:
        first = start // self.block_size
        if not self.enable_prefix_cache or first == end // self.block_size:
            return
        inserted = self._prefix_cache.insert(
            sequence.token_ids[:end], sequence.block_hashes, salt, sequence.block_table, first, sequence.media
        )
        for block_id in inserted:
            self._pool.retain(block_id)

    def _release_behind(self, sequence: Sequence, num_behind: int) -> None:
        """Put block 0 in the place of the first `num_behind` blocks."""
        table = sequence.block_table
        for index in range(num_behind - 1, -1, -1):
            if table[index] == PADDING_BLOCK:
                return
            self._release_place(table, index)

    def _release_place(self, table: list[int], index: int) -> None:
        self._pool.release([table[index]])
        table[index] = PADDING_BLOCK

    def free(self, sequence: Sequence) -> None:
        """Take all blocks from `sequence`; those that the prefix cache knows stay findable until they are evicted.

        Nothing of the sequence counts as computed afterwards. A sequence without blocks is left alone. An archive gets the
        blocks now rather than when they are evicted: those of a beginning that is always in use never would be.
        """
        if self._tiers is not None and self._tiers.has_archive:
            for block_id in sequence.block_table:
                if self._pool.is_retained(block_id):
                    self._tiers.archive(self._prefix_cache.key_of(block_id), block_id)
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0

    def check_integrity(self, sequences: Iterable[Sequence], in_flight: Mapping[int, int] = _NOTHING) -> None:
        """Check every invariant, where `sequences` are all that can hold blocks; O(blocks).

        `in_flight` says, by id of the sequence, how many tokens will be computed when the step in flight has ended.

        Raises:
            IntegrityError: names the first block or sequence that breaks one.
        """
        self._pool.check_integrity()
        held: Counter[int] = Counter()
        private: Counter[int] = Counter()
        owners: dict[int, set[tuple[str, int]]] = {}
        """By last block: whose it is; forks have one name together."""
        for sequence in sequences:
            self._check_table(sequence)
            held.update(block_id for block_id in sequence.block_table if block_id != PADDING_BLOCK)
            num_computed = max(sequence.num_computed_tokens, in_flight.get(id(sequence), 0))
            private.update(sequence.block_table[num_computed // self.block_size :])
            if sequence.block_table:
                owners.setdefault(sequence.block_table[-1], set()).add((sequence.request_id, sequence.index))
        for block_id in range(1, self.num_usable_blocks + 1):
            references = self._pool.num_references(block_id)
            if references != held[block_id]:
                raise IntegrityError(f"Block {block_id} has {references} references and {held[block_id]} holders.")
        for block_id, num_writers in private.items():
            is_forked = held[block_id] == num_writers and len(owners.get(block_id, ())) == 1
            if (num_writers != 1 and not is_forked) or self._pool.is_retained(block_id):
                raise IntegrityError(f"Block {block_id} is still written to, but by several sequences, or published.")
        self._prefix_cache.check_integrity(self._pool.retained_flags)
        if self._tiers is not None:
            self._tiers.check_integrity()

    def _check_table(self, sequence: Sequence) -> None:
        num_behind = 0 if self._window is None else self._window.num_behind(sequence.num_computed_tokens)
        if PADDING_BLOCK in sequence.block_table[num_behind:]:
            raise IntegrityError(f"{sequence} holds the padding block 0.")
        held = [block_id for block_id in sequence.block_table if block_id != PADDING_BLOCK]
        if len(set(held)) != len(held):
            raise IntegrityError(f"{sequence} holds a block twice.")
        if self.num_blocks_for(sequence.num_computed_tokens) > len(sequence.block_table):
            raise IntegrityError(f"{sequence} has computed more tokens than its blocks hold.")
        if sequence.num_computed_tokens > sequence.num_tokens:
            raise IntegrityError(f"{sequence} has computed more tokens than it has.")
