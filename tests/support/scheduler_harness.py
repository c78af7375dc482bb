"""A scheduler with a `PagedStore` behind it, driven step by step, all invariants checked after each."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from support.paged_store import PagedStore, expected_tokens
from xllm_framework.batch import BatchGroup, ForwardInput, ForwardInputBuilder, ForwardOutput
from xllm_framework.batch.placeholders import replace_placeholders
from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager, HashPrefixCache, StateSlots
from xllm_framework.request import Request, SamplingParams, StoppingChecker
from xllm_framework.request.messages import SequenceDelta
from xllm_scheduler import Scheduler
from xllm_scheduler.latency import LatencyModel

EOS = 0


class SchedulerHarness:
    """Options are those of `SchedulerConfig`; `num_blocks` counts usable blocks. Time stands still: set `now_s`.

    With `num_ranks`, each data-parallel rank has its own blocks and its own store; `blocks` and `store` are rank 0's.
    `is_overlapped` plans each step while the one before it is in flight, which is computed as late as it can be.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 200,
        block_size: int = 4,
        enable_prefix_cache: bool = True,
        max_model_len: int = 10_000,
        is_overlapped: bool = False,
        num_ranks: int = 1,
        num_host_blocks: int = 0,
        sliding_windows: tuple[int, ...] = (0,),
        num_state_slots: int = 0,
        state_stride: int = 0,
        latency: LatencyModel | None = None,
        **options,
    ) -> None:
        self.now_s = 0.0
        self.ranks = [
            BlockManager(
                num_blocks + 1,
                block_size,
                enable_prefix_cache=enable_prefix_cache,
                prefix_cache=HashPrefixCache(block_size, b"secret"),
                num_host_blocks=num_host_blocks,
                sliding_windows=sliding_windows,
                states=StateSlots(num_state_slots, state_stride or block_size) if num_state_slots else None,
            )
            for _ in range(num_ranks)
        ]
        self.blocks = self.ranks[0]
        self.stopping = StoppingChecker((EOS,), max_model_len)
        self.sliding_window = 0 if 0 in sliding_windows else max(sliding_windows)
        """What the next token depends on; 0 for all tokens before it."""
        self.stores = [
            PagedStore(num_blocks + 1, block_size, sliding_windows=sliding_windows) for _ in range(num_ranks)
        ]
        self.store = self.stores[0]
        self.scheduler = Scheduler(
            SchedulerConfig(enable_schedule_overlap=is_overlapped, **options),
            self.ranks,
            self.stopping,
            latency=latency,
            clock=lambda: self.now_s,
        )
        self.requests: dict[str, Request] = {}
        self.tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.last: dict[tuple[str, int], SequenceDelta] = {}
        self.deltas: list[SequenceDelta] = []
        self.groups: list[BatchGroup] = []
        self._builder = ForwardInputBuilder(block_size, (EOS,), len(sliding_windows))
        self._is_overlapped = is_overlapped
        self._in_flight: tuple[BatchGroup, list[ForwardInput]] | None = None
        self._drawn: list[npt.NDArray[np.int32]] = []

    def add(self, request_id: str, prompt: list[int], *, seed: int = 0, **options) -> Request:
        """Queue a request; `options` are those of `SamplingParams`, or of `Request`."""
        names = ("priority", "deadline_s", "cache_salt", "is_offline", "objectives", "pooling")
        of_request = {name: options.pop(name) for name in names if name in options}
        request = Request(
            request_id, prompt, SamplingParams(**options), arrival_time_s=self.now_s, seed=seed, **of_request
        )
        self.scheduler.add_request(request)
        self.requests[request_id] = request
        return request

    def step(self, *, before_update=None) -> list[SequenceDelta]:
        """Run one step; `before_update` is called while it is in flight."""
        group = self.scheduler.schedule()
        self.groups.append(group)
        planned = (group, [] if group.is_empty else [self._builder.build(batch) for batch in group.batches])
        if self._is_overlapped:
            planned, self._in_flight = self._in_flight or (BatchGroup(()), []), planned
        outputs = self._compute(*planned)
        if before_update is not None:
            before_update()
        deltas = self.scheduler.update(planned[0], outputs)
        assert len({(d.request_id, d.index) for d in deltas}) == len(deltas), "two deltas of one sequence"
        for delta in deltas:
            key = (delta.request_id, delta.index)
            assert key not in self.last or self.last[key].finish_reason is None, "news after the end"
            assert all(token_id >= 0 for token_id in delta.token_ids), "a placeholder came out"
            self.tokens[key].extend(delta.token_ids)
            self.last[key] = delta
        self.deltas.extend(deltas)
        self.scheduler.check_integrity()
        return deltas

    def _compute(self, group: BatchGroup, inputs: list[ForwardInput]) -> list[ForwardOutput]:
        outputs = []
        for rank, (batch, forward_input) in enumerate(zip(group.batches, inputs, strict=False)):
            replace_placeholders(forward_input, self._drawn[rank] if self._drawn else None)
            output = self.stores[rank].execute(batch, forward_input)
            output.pooled = {  # a token's hidden state is (its id, 1)
                rows.index: np.array(
                    [forward_input.token_ids[rows.first : rows.end].sum(), rows.end - rows.first], "f4"
                )
                for rows in forward_input.pooled
            }
            outputs.append(output)
        self._drawn = [output.token_ids for output in outputs]
        return outputs

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done or reported, and nothing is in flight."""
        return not self.scheduler.has_work and (self._in_flight is None or self._in_flight[0].is_empty)

    def run(self, max_steps: int = 5000) -> None:
        """Run until nothing is left, and check that all blocks came back."""
        for _ in range(max_steps):
            if self.is_idle:
                break
            self.step()
        assert self.is_idle, "the scheduler hangs"
        self.check_idle()

    def check_idle(self) -> None:
        """Check that nobody holds a block."""
        for blocks in self.ranks:
            assert blocks.num_allocated_blocks == 0
            assert blocks.num_free_blocks + blocks.num_cached_blocks == blocks.num_usable_blocks

    def expected(self, request_id: str, index: int = 0) -> list[int]:
        """Return what the sequence must generate when it runs to its natural end."""
        return expected_tokens(
            self.requests[request_id], index, self.stopping, self.store.vocab_size, self.sliding_window
        )

    def check_outputs(self) -> None:
        """Check every sequence against what it must generate."""
        for request in self.requests.values():
            for sequence in request.sequences:
                key = (request.request_id, sequence.index)
                assert self.last[key].finish_reason in ("stop", "length"), self.last[key]
                assert self.tokens[key] == self.expected(*key), key

    def chunks(self, request_id: str) -> list[tuple[int, int]]:
        """Return (start, tokens) of everything that was scheduled of the request's first sequence."""
        return [
            (item.start, item.num_scheduled_tokens)
            for group in self.groups
            for batch in group.batches
            for item in batch
            if item.request.request_id == request_id and item.sequence.index == 0
        ]
