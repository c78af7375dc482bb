"""Admits waiting sequences: which rank, how many blocks, at whose cost. Knows nothing of the order in which they come.

Whoever is admitted gets the blocks of all its tokens. A refusal ends the step's admissions, so that nobody overtakes a
sequence that waits for room, and a long prompt is not starved by short ones.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from xllm_framework.batch import ScheduledSequence
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import OutOfBlocks, RequestTooLong
from xllm_framework.kv_cache import BlockManager, PrefixMatch
from xllm_framework.request import FinishReason, Request, Sequence
from xllm_framework.request.messages import EngineStats
from xllm_scheduler.budget import StepBudget
from xllm_scheduler.chunking import ChunkSizer
from xllm_scheduler.lifecycle import Lifecycle
from xllm_scheduler.logprobs import needs_every_position
from xllm_scheduler.placement import Placement, find_placements
from xllm_scheduler.preemption import admission_victims
from xllm_scheduler.queue import QueueEntry
from xllm_scheduler.zero_evict import ZeroEvictGate

GROWTH_RESERVE = 10
"""At an admission one block is left for the growth of running sequences for each this many that they hold."""

_MIN_REMATCH_INTERVAL = 64


class Admission:
    """Moves sequences from the waiting to the running ones.

    Args:
        num_class_ranks: see `OrderingStrategy.num_class_ranks`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_managers: List[BlockManager],
        lifecycle: Lifecycle,
        chunks: ChunkSizer,
        stats: EngineStats,
        num_class_ranks: int,
    ) -> None:
        self._blocks = block_managers
        self._lifecycle = lifecycle
        self._chunks = chunks
        self._stats = stats
        self._num_class_ranks = num_class_ranks
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens * len(block_managers))
        self._max_block_use = config.max_block_use
        self._rematch_frequency = config.chunked_match_frequency
        self._is_sharing_in_batch = config.enable_in_batch_prefix
        self._can_preempt_offline = config.enable_online_preempt_offline
        self._zero_evict = ZeroEvictGate(config.zero_evict_output_tokens) if config.enable_zero_evict else None

    def admit(self, entry: QueueEntry, budget: StepBudget, step: int, now_s: float) -> ScheduledSequence | None:
        """Give the first waiting sequence its blocks and a first chunk, or end this step's admissions."""
        if not budget.can_admit or self._end_unschedulable(entry):
            return None
        request, sequence = entry.request, entry.sequence
        can_share = self._blocks[0].enable_prefix_cache and not needs_every_position(request, sequence)
        for placement in find_placements(self._blocks, request, sequence, budget, can_share=can_share):
            if self._make_room(entry, placement, budget, step):
                item = self._place(entry, placement, budget)
                if item is not None:
                    self._count(request, sequence, now_s, can_share)
                    return item
        budget.can_admit = False
        return None

    def _place(self, entry: QueueEntry, placement: Placement, budget: StepBudget) -> ScheduledSequence | None:
        """Admit `entry` if the step has tokens for it, and nobody will have to be preempted for it."""
        request, sequence = entry.request, entry.sequence
        rank, match, blocks = placement.rank, placement.match, self._blocks[placement.rank]
        start = len(match) * blocks.block_size
        num_uncomputed = sequence.num_tokens - start
        num_tokens = self._chunks.size(start, num_uncomputed, rank, budget, request.media)
        must_be_whole = not self._chunks.can_chunk and sequence.num_preemptions == 0
        if num_tokens == 0 or (must_be_whole and num_tokens < num_uncomputed):
            return None
        if self._zero_evict is not None and not self._zero_evict.allows(
            entry, match, [other for other in self._lifecycle.running if other.sequence.rank == rank], blocks
        ):
            return None
        if not blocks.admit(
            sequence,
            match,
            sequence.num_tokens,
            chunk=num_tokens,
            reserve=_reserve(blocks),
            salt=request.cache_salt,
            is_looked_up=not needs_every_position(request, sequence),
        ):
            return None
        if sequence.num_computed_tokens > start:  # more was found in the host's memory
            start = sequence.num_computed_tokens
            num_uncomputed = sequence.num_tokens - start
            num_tokens = min(num_tokens, num_uncomputed)
        sequence.rank = rank
        self._lifecycle.start(entry)
        self.announce(entry, num_tokens)
        if self._rematch_frequency and blocks.enable_prefix_cache and num_tokens < num_uncomputed:
            entry.next_rematch = start + self.rematch_interval(sequence)
        return ScheduledSequence(request, sequence, start, num_tokens, placement.announcers)

    def announce(self, entry: QueueEntry, num_tokens: int) -> None:
        """Let prompts that come later in the step share what `entry` computes in it.

        Not of one token, which may be computed as a decode is: see `placement`.
        """
        if self._is_sharing_in_batch and num_tokens > 1:
            sequence = entry.sequence
            end = sequence.num_computed_tokens + num_tokens
            self._blocks[sequence.rank].announce(sequence, end, entry.request.cache_salt)

    def rematch_interval(self, sequence: Sequence) -> int:
        """Return after how many more computed tokens the prompt of `sequence` looks into the prefix cache again."""
        interval = -(-sequence.num_tokens // (self._rematch_frequency + 1))
        return max(interval, _MIN_REMATCH_INTERVAL)

    def _make_room(self, entry: QueueEntry, placement: Placement, budget: StepBudget, step: int) -> bool:
        """Preempt running sequences of lower classes until `entry` has a place and its blocks; nobody if that is in vain."""
        sequence, match, blocks = entry.sequence, placement.match, self._blocks[placement.rank]
        if self._has_room(sequence, match, blocks):
            return True
        if budget.can_preempt_to_admit:
            num_class_parts = 1 + self._num_class_ranks
        else:
            num_class_parts = int(self._can_preempt_offline and self._lifecycle.num_offline > 0)
        victims = list(admission_victims(self._lifecycle.running, entry, placement.rank, step, num_class_parts))
        num_gained = sum(blocks.num_held(victim.sequence) for victim in victims)
        num_needed = blocks.num_blocks_to_admit(sequence, match, self._chunks.max_chunk)
        if num_needed > blocks.num_available_blocks + num_gained:
            return False
        for victim in victims:
            self._lifecycle.preempt(victim)
            if self._has_room(sequence, match, blocks):
                return True
        return False

    def _has_room(self, sequence: Sequence, match: PrefixMatch, blocks: BlockManager) -> bool:
        num_allocated = blocks.num_allocated_blocks
        return (
            len(self._lifecycle.running) < self._max_num_seqs
            and (num_allocated == 0 or num_allocated < self._max_block_use * blocks.num_usable_blocks)
            and blocks.num_blocks_to_admit(sequence, match, self._chunks.max_chunk) + _reserve(blocks)
            <= blocks.num_available_blocks
        )

    def _end_unschedulable(self, entry: QueueEntry) -> bool:
        """End the first waiting sequence if it could not run even alone; return whether it ended."""
        lifecycle, request, sequence = self._lifecycle, entry.request, entry.sequence
        num_usable = max(blocks.num_usable_blocks for blocks in self._blocks)
        num_needed = self._blocks[0].most_blocks(sequence.num_tokens, self._chunks.max_chunk)
        num_prompt_tokens = sequence.num_prompt_tokens
        if num_needed > num_usable and sequence.num_output_tokens > 0:
            lifecycle.end_early(lifecycle.records[sequence.request_id], sequence, FinishReason.LENGTH)
        elif num_needed > num_usable:
            message = f"The prompt's {num_prompt_tokens} tokens need {num_needed} KV blocks of {num_usable} in all."
            lifecycle.fail(request, OutOfBlocks(message))
        elif not self._chunks.can_chunk and num_prompt_tokens > self._chunks.max_chunk:
            message = (
                f"The prompt has {num_prompt_tokens} tokens, but a step computes at most {self._chunks.max_chunk} "
                "(max_num_batched_tokens) and enable_chunked_prefill is off."
            )
            lifecycle.fail(request, RequestTooLong(message, "prompt"))
        return sequence.is_finished

    def _count(self, request: Request, sequence: Sequence, now_s: float, is_looked_up: bool) -> None:
        if request.first_scheduled_time_s is None:
            request.first_scheduled_time_s = now_s
            self._lifecycle.records[request.request_id].num_cached_tokens = sequence.num_cached_tokens
        if is_looked_up and sequence.num_preemptions == 0:
            self._stats.prefix_cache_queries += sequence.num_prompt_tokens
            self._stats.prefix_cache_hits += sequence.num_cached_tokens


def _reserve(blocks: BlockManager) -> int:
    return -(-blocks.num_allocated_blocks // GROWTH_RESERVE)
