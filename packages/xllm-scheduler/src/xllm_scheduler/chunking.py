"""How many tokens of a prompt one step computes. Knows nothing of blocks or of who is asked first."""

from __future__ import annotations

from math import inf

from xllm_framework.batch import Batch, ScheduledSequence
from xllm_framework.config import SchedulerConfig
from xllm_framework.multimodal.prompt_media import PromptMedia
from xllm_framework.request import SequenceStatus
from xllm_scheduler.budget import StepBudget
from xllm_scheduler.encoder_budget import tokens_within_encoder_budget
from xllm_scheduler.latency import LatencyModel

MIN_CHUNK = 50
"""Chunks that end a step's time are not shorter than this, unless they finish the prompt: each costs a whole pass."""


class ChunkSizer:
    """Sizes chunks under the limits of `config`, and under the step's time limit if a latency model is known.

    `max_chunk` is what the blocks of a sliding window leave for a step; see `BlockManager.max_chunk`. `stride` is how often a
    state is saved that a later prompt can go on from; see `BlockManager.checkpoint_stride`.
    """

    def __init__(
        self, config: SchedulerConfig, latency: LatencyModel | None, max_chunk: int | None = None, stride: int = 0
    ) -> None:
        self.can_chunk = config.enable_chunked_prefill
        self.max_chunk = (self.can_chunk and config.max_prefill_chunk) or config.max_num_batched_tokens
        self._stride = stride if self.can_chunk else 0
        self.can_grow = max_chunk is None and not self._stride
        """Whether a prompt has blocks for all its tokens, so that chunks may still become longer."""
        if max_chunk is not None:
            self.max_chunk = min(self.max_chunk, max_chunk)
        self.max_encoder_tokens = config.max_encoder_tokens
        self.latency = latency

    def size(
        self, start: int, num_uncomputed: int, rank: int, budget: StepBudget, media: PromptMedia | None = None
    ) -> int:
        """Return how many of `num_uncomputed` tokens behind `start` others the step computes on `rank`; maybe 0.

        `media` are the prompt's images and videos.
        """
        num_left = budget.ranks[rank].num_prompt_tokens_left
        if num_left < min(budget.ranks[rank].shortest_chunk, num_uncomputed) and budget.num_scheduled:
            return 0
        size = self._within_time(start, min(num_uncomputed, self.max_chunk, num_left), num_uncomputed, rank, budget)
        if self._stride:
            size = self._up_to_checkpoint(start, size, num_uncomputed)
        if media is None or not self.can_chunk:
            return size
        return tokens_within_encoder_budget(media, start, size, self.max_encoder_tokens, budget)

    def fits_time(self, start: int, rank: int, budget: StepBudget) -> bool:
        """Whether a decode behind `start` tokens may run; only decodes that are limited are asked."""
        if self.latency is None or budget.limit_s == inf or budget.num_scheduled == 0:
            return True
        return budget.ranks[rank].used_s + self.latency.decode_s(start) <= budget.limit_s

    def charge_time(self, item: ScheduledSequence, budget: StepBudget) -> None:
        """Count the time of a scheduled sequence."""
        if self.latency is None:
            return
        if item.sequence.status is SequenceStatus.DECODE:
            seconds = self.latency.decode_s(item.start, item.num_scheduled_tokens)
        else:
            seconds = self.latency.prefill_s(item.num_scheduled_tokens, item.start)
        budget.ranks[item.sequence.rank].used_s += seconds

    def share_leftover(self, batch: Batch, rank: int, budget: StepBudget) -> None:
        """Make chunks of `batch` longer, the first ones first, while tokens and time of the step are left."""
        for item in batch:
            num_left = item.sequence.num_tokens - item.start - item.num_scheduled_tokens
            if num_left <= 0 or item.sequence.status is SequenceStatus.DECODE or item.request.media is not None:
                continue
            end = item.start + item.num_scheduled_tokens
            most = min(num_left, budget.ranks[rank].num_prompt_tokens_left)
            extra = self._within_time(end, most, num_left, rank, budget) if most > 0 else 0
            if extra:
                item.num_scheduled_tokens += extra
                batch.num_tokens += extra
                budget.ranks[rank].num_tokens_left -= extra
                budget.ranks[rank].num_prompt_tokens_left -= extra
                budget.num_tokens_left -= extra

    def _up_to_checkpoint(self, start: int, size: int, num_uncomputed: int) -> int:
        """Let a step end where a state is to be saved, if it gets so far; the last such place is never passed by."""
        last = (start + num_uncomputed - 1) // self._stride * self._stride
        end = (start + size) // self._stride * self._stride
        return min(end, last) - start if start < min(end, last) else size

    def _within_time(self, start: int, max_tokens: int, num_uncomputed: int, rank: int, budget: StepBudget) -> int:
        rank_budget = budget.ranks[rank]
        num_tokens = min(max_tokens, rank_budget.num_tokens_left)
        if self.latency is None or budget.limit_s == inf or num_tokens <= 0:
            return max(num_tokens, 0)
        longest = self.latency.longest_chunk(start, num_tokens, budget.limit_s - rank_budget.used_s)
        if longest < min(MIN_CHUNK, num_uncomputed):
            longest = min(MIN_CHUNK, num_tokens) if budget.num_scheduled == 0 else 0
        return longest
