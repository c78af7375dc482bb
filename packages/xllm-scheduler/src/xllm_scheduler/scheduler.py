"""Decides each step's work: `schedule()` -> (someone executes) -> `update()`.

What may not be added here:
- an order of preference: that is a policy (`policies/`) or an ordering strategy (`queue`), each a small object;
- a second loop that allocates and charges: the one in `schedule` serves every policy, so that none can drift apart;
- a subclass for a mode; text, clients or sockets; anything that waits, logs each step, or touches a tensor.

Knows nothing of what executes a step. All calls come from one thread. At admission a sequence gets the blocks of all
its tokens, so that prompts in flight never wait for blocks, and only decodes can find the pool empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import copy

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import DeadlineExceeded, InvalidConfig, OutOfBlocks, RequestFailed, RequestTooLong
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import FinishReason, Request, Sequence, SequenceStatus, StoppingChecker
from xllm_framework.request.messages import EngineStats, SequenceDelta
from xllm_scheduler.budget import StepBudget
from xllm_scheduler.lifecycle import Lifecycle
from xllm_scheduler.logprobs import chunk_logprobs, row_logprobs
from xllm_scheduler.overlap import Assumption, StepAhead
from xllm_scheduler.policies import create_policy
from xllm_scheduler.policy import SchedulerPolicy
from xllm_scheduler.preemption import choose_victim
from xllm_scheduler.queue import OrderingStrategy, QueueEntry, by_priority
from xllm_scheduler.record import RequestRecord

_WAITING, _PREFILL, _FINISHED = SequenceStatus.WAITING, SequenceStatus.PREFILL, SequenceStatus.FINISHED

GROWTH_RESERVE = 10
"""At an admission one block is left for the growth of running sequences for each this many that they hold."""


class Scheduler:
    """Continuous batching over one block pool.

    Args:
        config: limits and the policy's name.
        block_manager: the pool; nobody else may use it.
        stopping: decides when a sequence ends by its tokens.
        ordering: order of waiting sequences, and in reverse of victims; see `OrderingStrategy`.
        policy: overrides the one that `config` names.
        clock: seconds; the same clock as `Request.arrival_time_s` and `deadline_s`.

    Raises:
        InvalidConfig: a limit is below 1, or an unknown policy.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_manager: BlockManager,
        stopping: StoppingChecker,
        *,
        ordering: OrderingStrategy = by_priority,
        policy: SchedulerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(config, name) < 1:
                raise InvalidConfig(f"{name} must be 1 or more, not {getattr(config, name)}.")
        self._blocks = block_manager
        self._stopping = stopping
        self._policy = policy or create_policy(config.policy)
        self._clock = clock
        self._max_num_tokens = config.max_num_batched_tokens
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._can_chunk = config.enable_chunked_prefill
        self._max_chunk = (self._can_chunk and config.max_prefill_chunk) or config.max_num_batched_tokens
        self._lifecycle = Lifecycle(block_manager, ordering)
        self._ahead = StepAhead(stopping)
        self._stats = EngineStats(num_blocks=block_manager.num_usable_blocks)
        self._step = 0
        self._step_start_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        return self._lifecycle.has_work

    def add_request(self, request: Request) -> None:
        """Queue a request. It need not fit: one that can never run ends with an error from a later `update`.

        Raises:
            InvalidRequest: an unfinished request has the same id, or the prompt is empty.
        """
        self._lifecycle.add(request)

    def abort(self, targets: Iterable[str | tuple[str, int]]) -> None:
        """End requests, or single sequences as (request id, index), at once; unknown and finished ones are ignored.

        Blocks are free when this returns, also those of a step in flight, whose tokens `update` then discards. The
        deltas come from the next `update`.
        """
        self._lifecycle.abort(targets)

    def schedule(self) -> BatchGroup:
        """Choose the next step's work and allocate its blocks; the group may be empty.

        Call `update` with it next; or, to plan with one step of lead, `schedule` once more and then `update`, with the
        groups in turn. A group that is not the first of its kind then counts on the results of the one before it.
        """
        now_s = self._step_start_s = self._clock()
        self._ahead.begin()
        self._step += 1
        lifecycle = self._lifecycle
        for request in lifecycle.waiting.pop_expired(now_s):
            waited_s = now_s - request.arrival_time_s
            lifecycle.fail(
                request, DeadlineExceeded(f"The request's deadline passed after {waited_s:.3f} s of waiting.")
            )
        batch = Batch()
        budget = StepBudget(self._max_num_tokens)
        for entry in self._policy.plan(lifecycle.waiting, lifecycle.running, budget):
            if budget.num_tokens_left == 0:
                break
            if entry.sequence.status is _WAITING:
                item = self._admit(entry, budget, now_s)
            else:
                item = self._continue(entry, budget)
            if item is not None:
                entry.last_scheduled_step = self._step
                batch.add(item)
                budget.charge(item.num_scheduled_tokens)
        group = BatchGroup((batch,))
        self._ahead.plan(group)
        return group

    def update(self, group: BatchGroup, outputs: list[ForwardOutput]) -> list[SequenceDelta]:
        """Take the step's results, one output a batch of `group` (none are needed if it is empty).

        Appends tokens, ends sequences and frees their blocks, makes full blocks known to the prefix cache. Returns one
        delta for each sequence with news, those that ended since the last call included.
        """
        if not group.is_empty:
            assumptions = self._ahead.settle()
            for batch, output in zip(group.batches, outputs, strict=True):
                self._update_batch(batch, output, assumptions)
            self._lifecycle.remove_finished()
            self._stats.num_steps += 1
            self._stats.step_time_s += self._clock() - self._step_start_s
        return self._lifecycle.take_deltas()

    def rewind(self, group: BatchGroup) -> BatchGroup:
        """Take back `schedule` after the step `group` failed: a step planned after it is dropped, and will be planned anew.

        Returns what of `group` is still to be computed; `update` with all or part of that follows.
        """
        group, dropped = self._ahead.rewind(group)
        prefilled = {id(item.sequence) for batch in dropped.batches for item in batch}
        for entry in [entry for entry in self._lifecycle.running if id(entry.sequence) in prefilled]:
            if entry.sequence.status is _PREFILL:
                self._lifecycle.preempt(entry)
        return group

    def stats(self) -> EngineStats:
        """Return gauges of this moment and counters since the start."""
        stats = self._stats
        stats.num_running = len(self._lifecycle.running)
        stats.num_waiting = len(self._lifecycle.waiting)
        stats.num_free_blocks = self._blocks.num_free_blocks
        stats.num_cached_blocks = self._blocks.num_cached_blocks
        return copy(stats)

    def check_integrity(self) -> None:
        """Check every invariant of queues and cache; between `update` and the next `schedule`; O(blocks + sequences).

        Raises:
            IntegrityError: names what is wrong.
        """
        self._lifecycle.check_integrity()

    def _admit(self, entry: QueueEntry, budget: StepBudget, now_s: float) -> ScheduledSequence | None:
        """Give the first waiting sequence the blocks of all its tokens and a first chunk, or end this step's admissions."""
        if not budget.can_admit or self._end_unschedulable(entry):
            return None
        if len(self._lifecycle.running) >= self._max_num_seqs:
            budget.can_admit = False
            return None
        request, sequence = entry.request, entry.sequence
        is_looked_up = self._blocks.enable_prefix_cache and not _owes_prompt_logprobs(request, sequence)
        matched = self._blocks.match_prefix(sequence, request.cache_salt) if is_looked_up else []
        num_uncomputed = sequence.num_tokens - len(matched) * self._blocks.block_size
        num_tokens = self._chunk(num_uncomputed, budget)
        must_be_whole = not self._can_chunk and sequence.num_preemptions == 0
        reserve = -(-self._blocks.num_allocated_blocks // GROWTH_RESERVE)
        if (must_be_whole and num_tokens < num_uncomputed) or not self._blocks.admit(
            sequence, matched, sequence.num_tokens, reserve=reserve
        ):
            budget.can_admit = False
            return None
        self._lifecycle.start(entry)
        self._count_admission(request, sequence, now_s, is_looked_up)
        return ScheduledSequence(request, sequence, sequence.num_computed_tokens, num_tokens)

    def _continue(self, entry: QueueEntry, budget: StepBudget) -> ScheduledSequence | None:
        """Give a running sequence its next tokens, preempting newer ones for blocks if need be."""
        lifecycle, sequence = self._lifecycle, entry.sequence
        start = sequence.num_computed_tokens
        num_tokens = sequence.num_tokens - start
        if num_tokens > 1:
            num_tokens = self._chunk(num_tokens, budget)
        if num_tokens == 0:
            return None
        while not self._blocks.allocate(sequence, start + num_tokens):
            if len(lifecycle.running) == 1:
                if sequence.last_token_id < 0:
                    return None
                lifecycle.end(lifecycle.records[sequence.request_id], sequence, FinishReason.LENGTH)
                lifecycle.remove_finished()
                return None
            victim = choose_victim(lifecycle.running, self._step)
            lifecycle.preempt(victim)
            budget.can_admit = False
            self._stats.num_preemptions += 1
            if victim is entry:
                return None
        return ScheduledSequence(entry.request, sequence, start, num_tokens)

    def _chunk(self, num_uncomputed: int, budget: StepBudget) -> int:
        return min(num_uncomputed, budget.num_tokens_left, self._max_chunk)

    def _end_unschedulable(self, entry: QueueEntry) -> bool:
        """End the first waiting sequence if it could not run even alone; return whether it ended."""
        lifecycle, request, sequence = self._lifecycle, entry.request, entry.sequence
        num_needed, num_usable = self._blocks.num_blocks_for(sequence.num_tokens), self._blocks.num_usable_blocks
        num_prompt_tokens = sequence.num_prompt_tokens
        if num_needed > num_usable and sequence.num_output_tokens > 0:
            lifecycle.end_early(lifecycle.records[sequence.request_id], sequence, FinishReason.LENGTH)
        elif num_needed > num_usable:
            message = f"The prompt's {num_prompt_tokens} tokens need {num_needed} KV blocks of {num_usable} in all."
            lifecycle.fail(request, OutOfBlocks(message))
        elif not self._can_chunk and num_prompt_tokens > self._max_num_tokens:
            message = (
                f"The prompt has {num_prompt_tokens} tokens, but a step computes at most {self._max_num_tokens} "
                "(max_num_batched_tokens) and enable_chunked_prefill is off."
            )
            lifecycle.fail(request, RequestTooLong(message, "prompt"))
        return sequence.is_finished

    def _count_admission(self, request: Request, sequence: Sequence, now_s: float, is_looked_up: bool) -> None:
        if request.first_scheduled_time_s is None:
            request.first_scheduled_time_s = now_s
            self._lifecycle.records[request.request_id].num_cached_tokens = sequence.num_cached_tokens
        if is_looked_up and sequence.num_preemptions == 0:
            self._stats.prefix_cache_queries += sequence.num_prompt_tokens
            self._stats.prefix_cache_hits += sequence.num_cached_tokens

    def _update_batch(self, batch: Batch, output: ForwardOutput, assumptions: dict[int, Assumption]) -> None:
        """Apply one rank's results, in the order of `batch`; `assumptions` is empty without overlap."""
        token_ids, errors = output.token_ids.tolist(), output.errors or {}
        records, block_size = self._lifecycle.records, self._blocks.block_size
        next_row = 0
        for index, item in enumerate(batch.scheduled):
            sequence, start = item.sequence, item.start
            end = start + item.num_scheduled_tokens
            if assumptions:
                assumption = assumptions[id(sequence)]
                is_sampled, is_prefill, is_current = *assumption[:2], assumption.holds(sequence)
            else:
                is_sampled = end == sequence.num_tokens
                is_prefill, is_current = sequence.status is _PREFILL, sequence.status is not _FINISHED
            row = next_row
            next_row += is_sampled
            if not is_current:
                continue
            if not assumptions:
                sequence.num_computed_tokens = end
            if end // block_size != start // block_size:
                self._blocks.publish(sequence, start, end, item.request.cache_salt)
            record = records[sequence.request_id]
            if is_prefill:
                self._update_prefill(record, index, item, output, is_sampled)
            if not is_sampled:
                continue
            if row in errors:
                self._lifecycle.end(record, sequence, FinishReason.ERROR, error=RequestFailed(errors[row]))
            elif item.request.sampling.max_tokens == 0:
                self._lifecycle.end(record, sequence, FinishReason.LENGTH)
            else:
                self._append(record, sequence, token_ids[row], output, row)

    def _update_prefill(
        self, record: RequestRecord, index: int, item: ScheduledSequence, output: ForwardOutput, is_complete: bool
    ) -> None:
        """Collect a chunk's log-probabilities; after the last chunk the sequence decodes."""
        sequence, num_top = item.sequence, record.request.sampling.prompt_logprobs
        if num_top is not None and _owes_prompt_logprobs(record.request, sequence):
            if not record.prompt_logprobs:
                record.prompt_logprobs.append(None)
            record.prompt_logprobs.extend(chunk_logprobs(output, index, item, num_top))
        if is_complete:
            if sequence.index == 0 and _has_no_output(sequence):
                self._stats.num_prompt_tokens += sequence.num_prompt_tokens
            self._lifecycle.start_decode(record, sequence)

    def _append(
        self, record: RequestRecord, sequence: Sequence, token_id: int, output: ForwardOutput, row: int
    ) -> None:
        """Take the token sampled for `sequence`, end it if that is its last, and report it."""
        sampling = record.request.sampling
        if sequence.last_token_id < 0:
            sequence.replace_placeholder(token_id)
        else:
            sequence.append(token_id)
        self._stats.num_generated_tokens += 1
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = row_logprobs(output, row, token_id, sampling.logprobs)
        stop = self._stopping.check(sequence, sampling)
        if stop is None:
            self._lifecycle.report(record, sequence, [token_id], logprobs)
        else:
            reason, stop_token_id = stop
            self._lifecycle.end(
                record, sequence, reason, stop_reason=stop_token_id, token_ids=[token_id], logprobs=logprobs
            )


def _owes_prompt_logprobs(request: Request, sequence: Sequence) -> bool:
    """Whether the prompt's log-probabilities are still to be computed, so that no position may be skipped."""
    return request.sampling.prompt_logprobs is not None and sequence.index == 0 and _has_no_output(sequence)


def _has_no_output(sequence: Sequence) -> bool:
    """Whether no token of its output is known; a placeholder is not."""
    return sequence.num_tokens - (sequence.last_token_id < 0) <= sequence.num_prompt_tokens
