"""Decides each step's work: `schedule()` -> (someone executes) -> `update()`.

What may not be added here:
- an order of preference: that is a policy (`policies/`) or an ordering strategy (`queue`), each a small object;
- a second loop that allocates and charges: the one in `schedule` serves every policy, so that none can drift apart;
- a subclass for a mode; text, clients or sockets; anything that waits, logs each step, or touches a tensor.

Knows nothing of what executes a step. All calls come from one thread. At admission a sequence gets the blocks of all
its tokens, so that prompts in flight never wait for blocks, and only decodes can find the pool empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from copy import copy
from pathlib import Path

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import DeadlineExceeded, InvalidConfig, InvalidRequest
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import FinishReason, Request, SequenceStatus, StoppingChecker
from xllm_framework.request.messages import EngineStats, SequenceDelta
from xllm_scheduler.admission import Admission
from xllm_scheduler.beam import BeamGroup
from xllm_scheduler.budget import RankBudget, StepBudget
from xllm_scheduler.chunking import MIN_CHUNK, ChunkSizer
from xllm_scheduler.encoder_budget import charge_encoder
from xllm_scheduler.latency import LatencyModel, find_token_budget, load_latency_model
from xllm_scheduler.lifecycle import Lifecycle
from xllm_scheduler.logprobs import needs_every_position
from xllm_scheduler.ordering import Ordering
from xllm_scheduler.overlap import StepAhead
from xllm_scheduler.pace import FIRST_TOKENS, StepPace
from xllm_scheduler.pause import PauseControl, PauseMode, PauseState
from xllm_scheduler.policies import create_policy
from xllm_scheduler.policies.online_first import plan_online_first
from xllm_scheduler.policy import SchedulerPolicy
from xllm_scheduler.preemption import choose_victim
from xllm_scheduler.queue import QueueEntry
from xllm_scheduler.step_results import StepResults
from xllm_scheduler.step_times import StepTimes
from xllm_scheduler.strategies import find_strategy

_WAITING, _PREFILL, _DECODE = SequenceStatus.WAITING, SequenceStatus.PREFILL, SequenceStatus.DECODE


class Scheduler:
    """Continuous batching over one block pool, or over one for each data-parallel rank.

    Args:
        config: limits, and the names of the policy and of the strategy.
        block_manager: the pool, or one a rank; nobody else may use it. The prefix caches of several ranks must make
            equal keys (`HashPrefixCache` with one secret).
        stopping: decides when a sequence ends by its tokens.
        latency: how long steps take; None takes the file that `config` names, or does without.
        policy: overrides the one that `config` names.
        clock: seconds; the same clock as `Request.arrival_time_s` and `deadline_s`.

    Raises:
        InvalidConfig: a limit is below 1, an unknown policy or strategy, or a latency model that cannot be read.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_manager: BlockManager | List[BlockManager],
        stopping: StoppingChecker,
        *,
        latency: LatencyModel | None = None,
        policy: SchedulerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(config, name) < 1:
                raise InvalidConfig(f"{name} must be 1 or more, not {getattr(config, name)}.")
        if latency is None and config.latency_model:
            latency = load_latency_model(Path(config.latency_model))
        strategy = find_strategy(config.priority_strategy)
        self._blocks = [block_manager] if isinstance(block_manager, BlockManager) else list(block_manager)
        self._policy = policy or create_policy(config.policy)
        self._clock = clock
        self._max_num_tokens = config.max_num_batched_tokens
        self._max_num_seqs = config.max_num_seqs
        self._ttft_limit_s = 1e-3 * config.default_ttft_slo_ms or math.inf
        self._tpot_limit_s = 1e-3 * config.default_tpot_slo_ms or math.inf
        self._latency = latency
        self._has_latency = latency is not None
        self._seconds_a_token = 1e-6 * LatencyModel().per_token_us
        self._has_ranks = len(self._blocks) > 1
        self._constant_s = 0.0 if latency is None else latency.constant_s
        self._stats = EngineStats(num_blocks=sum(blocks.num_usable_blocks for blocks in self._blocks))
        step_s = 1e-3 * config.prefill_step_ms if config.enable_chunked_prefill else 0.0
        first_tokens = find_token_budget(latency, step_s, self._max_num_tokens) if latency is not None else FIRST_TOKENS
        self._pace = StepPace(step_s, self._max_num_tokens, first_tokens)
        self._ordering = Ordering(strategy, config, latency or LatencyModel())
        self._lifecycle = Lifecycle(self._blocks, self._ordering)
        first = self._blocks[0]
        self._chunks = ChunkSizer(config, latency, first.max_chunk, first.checkpoint_stride)
        self._admission = Admission(
            config, self._blocks, self._lifecycle, self._chunks, self._stats, strategy.num_class_ranks
        )
        self._results = StepResults(self._blocks, self._lifecycle, stopping, self._stats, clock)
        self._is_sharing_leftover = config.share_leftover_tokens and self._chunks.can_grow
        self._pause = PauseControl(self._lifecycle)
        self._ahead = StepAhead(stopping, is_used=config.enable_schedule_overlap)
        self._step = 0
        self._times = StepTimes()

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything. A paused scheduler has no work, however much waits."""
        if self._pause.state is PauseState.RUNNING:
            return self._lifecycle.has_work
        return self._pause.state is PauseState.PAUSING or self._lifecycle.has_news

    def add_request(self, request: Request) -> None:
        """Queue a request. It need not fit: one that can never run ends with an error from a later `update`.

        Raises:
            InvalidRequest: an unfinished request has the same id, the prompt is empty, or it asks for more beams than run
                at once, or for any from a model with linear state.
        """
        most = min(self._max_num_seqs, self._max_num_tokens)
        if request.sampling.beam_width > 1 and self._blocks[0].states is not None:
            raise InvalidRequest("beam_width must be 1: a model with linear state has no forks.", "beam_width")
        if request.sampling.beam_width > most:
            raise InvalidRequest(f"beam_width is {request.sampling.beam_width}, but {most} is the limit.", "beam_width")
        self._lifecycle.add(request)
        if not request.is_offline:
            self._pace.note_arrival(request.arrival_time_s)

    def abort(self, targets: Iterable[str | tuple[str, int]]) -> None:
        """End requests, or single sequences as (request id, index), at once; unknown and finished ones are ignored.

        Blocks are free when this returns, also those of a step in flight, whose tokens `update` then discards. The
        deltas come from the next `update`.
        """
        self._lifecycle.abort(targets)

    def schedule(self) -> BatchGroup:
        """Choose the next step's work and allocate its blocks; the group may be empty.

        Call `update` with it next; or, with `enable_schedule_overlap`, `schedule` once more and then `update`, with the
        groups in turn: each group then counts on the results of the one before it.
        """
        now_s = self._clock()
        self._ahead.begin()
        self._step += 1
        lifecycle = self._lifecycle
        for request in lifecycle.waiting.pop_expired(now_s):
            waited_s = now_s - request.arrival_time_s
            lifecycle.fail(
                request, DeadlineExceeded(f"The request's deadline passed after {waited_s:.3f} s of waiting.")
            )
        batches = tuple(Batch() for _ in self._blocks)
        if self._pause.may_plan():
            self._fill(batches, now_s)
        group = BatchGroup(batches)
        if not group.is_empty:
            self._times.plan(now_s)
        self._ahead.plan(group)
        return group

    def update(self, group: BatchGroup, outputs: list[ForwardOutput]) -> list[SequenceDelta]:
        """Take the step's results, one output a batch of `group` (none are needed if it is empty).

        Appends tokens, ends sequences and frees their blocks, makes full blocks known to the prefix cache. Returns one
        delta for each sequence with news, those that ended since the last call included.
        """
        if not group.is_empty:
            assumptions = self._ahead.settle()
            self._results.apply(group, outputs, assumptions)
            self._lifecycle.remove_finished()
            self._count_step(group)
        return self._lifecycle.take_deltas()

    def _count_step(self, group: BatchGroup) -> None:
        """Note how long the step `group` took."""
        seconds = self._times.settle(self._clock())
        self._stats.num_steps += 1
        self._stats.step_time_s += seconds
        if group.num_tokens > sum(len(batch) for batch in group.batches):
            chunks = (item.num_scheduled_tokens for batch in group.batches for item in batch.scheduled)
            seconds_a_token = self._pace.observe(sum(num_tokens for num_tokens in chunks if num_tokens > 1), seconds)
            if seconds_a_token:
                self._seconds_a_token = seconds_a_token
                lifecycle = self._lifecycle
                self._ordering.keep_pace(seconds_a_token, (lifecycle.waiting, lifecycle.held), lifecycle.running)

    def rewind(self, group: BatchGroup) -> BatchGroup:
        """Take back `schedule` after the step `group` failed: a step planned after it is dropped, and will be planned anew.

        Returns what of `group` is still to be computed; `update` with all or part of that follows.
        """
        group, dropped = self._ahead.rewind(group)
        if not dropped.is_empty:
            self._times.drop()
        prefilled = {id(item.sequence) for batch in dropped.batches for item in batch}
        for entry in [entry for entry in self._lifecycle.running if id(entry.sequence) in prefilled]:
            if entry.sequence.status is _PREFILL or entry.beams is not None:
                self._lifecycle.preempt(entry)
        return group

    def pause(self, mode: PauseMode = PauseMode.KEEP) -> None:
        """Stop planning, when the work at hand has gone the way of `mode`; requests are taken, and wait for `resume`."""
        self._pause.pause(mode)

    def resume(self) -> None:
        """Plan again."""
        self._pause.resume()

    @property
    def pause_state(self) -> PauseState:
        """RUNNING, PAUSING until `pause` has come into force, or PAUSED."""
        return self._pause.state

    def prefill_s(self, num_tokens: int, num_before: int) -> float:
        """Return the seconds that a prompt's `num_tokens` tokens behind `num_before` will take, as far as that is known."""
        if self._latency is not None:
            return self._latency.prefill_s(num_tokens, num_before)
        return num_tokens * self._seconds_a_token

    def stats(self) -> EngineStats:
        """Return gauges of this moment and counters since the start."""
        stats = self._stats
        stats.num_running = len(self._lifecycle.running)
        stats.num_waiting = len(self._lifecycle.waiting) + len(self._lifecycle.held)
        stats.num_preemptions = self._lifecycle.num_preemptions
        stats.num_free_blocks = sum(blocks.num_free_blocks for blocks in self._blocks)
        stats.num_cached_blocks = sum(blocks.num_cached_blocks for blocks in self._blocks)
        return copy(stats)

    def check_integrity(self) -> None:
        """Check every invariant of queues and cache; between `update` and the next `schedule`; O(blocks + sequences).

        Raises:
            IntegrityError: names what is wrong.
        """
        self._lifecycle.check_integrity(self._ahead.computed_in_flight())

    def _fill(self, batches: tuple[Batch, ...], now_s: float) -> None:
        """The one loop: take candidates as the policy offers them, allocate their blocks, charge the budget."""
        budget = self._new_budget(now_s)
        if self._ordering.is_dynamic:
            lifecycle = self._lifecycle
            budget.objective_limit_s = self._ordering.reorder(lifecycle.waiting, lifecycle.running, now_s)
        step, admit, charge_time = self._step, self._admission.admit, self._chunks.charge_time
        ranks = budget.ranks
        for entry in self._candidates(budget):
            if budget.num_tokens_left <= 0:
                break
            if entry.last_scheduled_step == step:
                continue
            sequence = entry.sequence
            if sequence.status is _WAITING:
                if entry is not self._lifecycle.waiting.peek():
                    continue  # it ran when the policy looked, and was preempted since
                item = admit(entry, budget, step, now_s)
            elif entry.beams is not None and sequence.status is _DECODE:
                for item in self._continue_beams(entry, entry.beams, budget):
                    entry.last_scheduled_step = step
                    batches[sequence.rank].add(item)
                    budget.charge(sequence.rank, item.num_scheduled_tokens)
                continue
            else:
                item = self._continue(entry, budget)
            if item is not None:
                entry.last_scheduled_step = step
                num_tokens = item.num_scheduled_tokens
                batch, rank_budget = batches[sequence.rank], ranks[sequence.rank]
                # `add` and `charge` in place: this runs for every sequence.
                batch.scheduled.append(item)
                batch.num_tokens += num_tokens
                rank_budget.num_tokens_left -= num_tokens
                if num_tokens > 1:
                    rank_budget.num_prompt_tokens_left -= num_tokens
                    if item.request.media is not None:
                        charge_encoder(item.request.media, item.start, num_tokens, budget)
                budget.num_tokens_left -= num_tokens
                budget.num_scheduled += 1
                if self._has_latency:
                    charge_time(item, budget)
        for rank, batch in enumerate(batches):
            self._blocks[rank].withdraw_announced()
            if batch.num_tokens:
                batch.moves = self._blocks[rank].take_moves()
            if batch.num_tokens > len(batch):
                if self._is_sharing_leftover and budget.ranks[rank].num_tokens_left > 0:
                    self._chunks.share_leftover(batch, rank, budget)
                batch.scheduled.sort(key=_is_prefill)

    def _new_budget(self, now_s: float) -> StepBudget:
        running, num_tokens = self._lifecycle.running, self._max_num_tokens
        may_be_long = self._pace.is_calm(now_s) and all(entry.sequence.status is not _DECODE for entry in running)
        num_prompt_tokens = self._pace.plan(may_be_long=may_be_long)
        shortest = min(MIN_CHUNK, num_prompt_tokens)
        ranks = [RankBudget(num_tokens, num_prompt_tokens, shortest, self._constant_s) for _ in self._blocks]
        return StepBudget(
            ranks,
            self._ttft_limit_s,
            self._tpot_limit_s,
            is_paced=self._pace.is_kept,
            num_encoder_tokens_left=self._chunks.max_encoder_tokens,
        )

    def _candidates(self, budget: StepBudget) -> Iterator[QueueEntry]:
        lifecycle = self._lifecycle
        if lifecycle.num_offline:
            return plan_online_first(self._policy, lifecycle.waiting, lifecycle.running, budget)
        return self._policy.plan(lifecycle.waiting, lifecycle.running, budget)

    def _continue(self, entry: QueueEntry, budget: StepBudget) -> ScheduledSequence | None:
        """Give a running sequence its next tokens, preempting others for blocks if need be."""
        lifecycle, sequence = self._lifecycle, entry.sequence
        num_tokens = sequence.num_tokens - sequence.num_computed_tokens
        if num_tokens != 1 or budget.is_limiting_decodes or self._has_ranks:
            num_tokens = self._num_tokens(entry, budget)
            if num_tokens == 0:
                return None
        start, blocks = sequence.num_computed_tokens, self._blocks[sequence.rank]
        end = start + num_tokens
        while end > len(sequence.block_table) * blocks.block_size and not blocks.allocate(sequence, end):
            if blocks.num_allocated_blocks == blocks.num_held(sequence):
                if sequence.last_token_id >= 0:
                    lifecycle.end(lifecycle.records[sequence.request_id], sequence, FinishReason.LENGTH)
                    lifecycle.remove_finished()
                return None
            victim = choose_victim(lifecycle.running, entry, self._step)
            lifecycle.preempt(victim)
            budget.can_admit = False
            if victim is entry:
                return None
        if num_tokens > 1:
            self._admission.announce(entry, num_tokens)
        return ScheduledSequence(entry.request, sequence, start, num_tokens)

    def _continue_beams(self, entry: QueueEntry, beams: BeamGroup, budget: StepBudget) -> list[ScheduledSequence]:
        """Give all beams of a request their next token, or none of them."""
        lifecycle, rank = self._lifecycle, entry.sequence.rank
        blocks, sequences = self._blocks[rank], [beam.sequence for beam in beams.beams]
        if any(sequence.num_uncomputed_tokens == 0 for sequence in sequences):
            return []
        if budget.num_scheduled and budget.ranks[rank].num_tokens_left < blocks.count_writes(sequences):
            return []
        while (copies := blocks.prepare_writes(sequences)) is None:
            if (
                len({block for s in sequences for table in s.tables for block in table if block})
                == blocks.num_allocated_blocks
            ):
                beams.finish_early()
                lifecycle.end_beams(lifecycle.records[entry.request.request_id], beams)
                lifecycle.remove_finished()
                return []
            victim = choose_victim(lifecycle.running, entry, self._step)
            lifecycle.preempt(victim)
            budget.can_admit = False
            if victim is entry:
                return []
        return [
            ScheduledSequence(entry.request, s, s.num_computed_tokens, s.num_uncomputed_tokens, block_copies=pairs)
            for s, pairs in zip(sequences, copies, strict=True)
        ]

    def _num_tokens(self, entry: QueueEntry, budget: StepBudget) -> int:
        """Return how many tokens of a running sequence the step computes; maybe 0."""
        sequence, chunks = entry.sequence, self._chunks
        if entry.next_rematch and sequence.num_computed_tokens >= entry.next_rematch:
            self._rematch(entry)
        start, rank = sequence.num_computed_tokens, sequence.rank
        num_tokens = sequence.num_tokens - start
        if num_tokens > 1:
            return chunks.size(start, num_tokens, rank, budget, entry.request.media)
        if budget.ranks[rank].num_tokens_left <= 0:
            return 0
        if budget.is_limiting_decodes and not chunks.fits_time(start, rank, budget):
            return 0
        return num_tokens

    def _rematch(self, entry: QueueEntry) -> None:
        """Look for more of a prompt in the prefix cache, where others may have put it since its admission.

        Not while its blocks are written to by a step in flight: that step would have to be told.
        """
        request, sequence = entry.request, entry.sequence
        if sequence.status is not _PREFILL or self._ahead.is_ahead or needs_every_position(request, sequence):
            return
        num_saved = self._blocks[sequence.rank].rematch(sequence, request.cache_salt)
        self._lifecycle.records[request.request_id].num_cached_tokens += num_saved
        self._stats.prefix_cache_hits += num_saved
        entry.next_rematch = sequence.num_computed_tokens + self._admission.rematch_interval(sequence)


def _is_prefill(item: ScheduledSequence) -> bool:
    return item.sequence.status is not _DECODE
