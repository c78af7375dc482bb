"""An engine side that a test steps by hand: a real loop and scheduler over an engine of the test's choice."""

from __future__ import annotations

import queue
from typing import Any

from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockArchive, BlockManager, HashPrefixCache
from xllm_framework.request import SamplingParams, StoppingChecker
from xllm_framework.request.messages import (
    AbortRequests,
    AddRequest,
    EngineStats,
    StepOutputs,
    WireLogprob,
)
from xllm_runtime.master.archive_fetcher import ArchiveFetcher
from xllm_runtime.master.constrained_requests import Compiler, LoopMessage
from xllm_runtime.master.loop import EngineLoop
from xllm_runtime.master.steps_in_flight import OverlappedEngine
from xllm_scheduler import Scheduler

BLOCK_SIZE = 16
PREFIX_SECRET = bytes(32)
"""One for all, so that what one side kept in an archive is found by the next."""
GREEDY = SamplingParams(temperature=0.0)


class EngineSide:
    """`tokens`, `reasons` and `errors` collect what each sequence (request id, index) got.

    `num_blocks` is the pool that the scheduler uses, without padding; the engine's own may be larger. `options` are
    `SchedulerConfig`'s.
    """

    def __init__(
        self,
        engine: OverlappedEngine,
        num_blocks: int = 200,
        *,
        max_model_len: int = 2048,
        eos_token_ids: tuple[int, ...] = (),
        enable_prefix_cache: bool = True,
        num_host_blocks: int = 0,
        can_copy_blocks: bool = False,
        archive: BlockArchive | None = None,
        compiler: Compiler | None = None,
        **options: Any,
    ) -> None:
        self.engine = engine
        self.blocks = BlockManager(
            num_blocks + 1,
            BLOCK_SIZE,
            enable_prefix_cache=enable_prefix_cache,
            prefix_cache=HashPrefixCache(BLOCK_SIZE, PREFIX_SECRET),
            num_host_blocks=num_host_blocks,
            archive=archive,
        )
        self.blocks.can_copy_blocks = can_copy_blocks
        config = SchedulerConfig(**options)
        self.scheduler = Scheduler(config, self.blocks, StoppingChecker(eos_token_ids, max_model_len))
        self.inbox: queue.SimpleQueue[LoopMessage] = queue.SimpleQueue()
        is_overlapped = config.enable_schedule_overlap
        self.fetcher: ArchiveFetcher | None = None
        if archive is not None:
            self.fetcher = ArchiveFetcher(archive, [self.blocks], lambda num_tokens, num_before: 1.0 * num_tokens)
        self.loop = EngineLoop(
            self.scheduler,
            self.engine,
            self.inbox,
            self._take,
            is_overlapped=is_overlapped,
            compiler=compiler,
            fetcher=self.fetcher,
            check_integrity=True,
        )
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        self.errors: dict[tuple[str, int], tuple[str | None, str | None]] = {}
        self.logprobs: dict[tuple[str, int], list[WireLogprob]] = {}
        self.prompt_logprobs: dict[tuple[str, int], list[WireLogprob | None]] = {}
        self.stats = EngineStats()

    def add(self, request_id: str, token_ids: list[int], sampling: SamplingParams = GREEDY) -> None:
        """Queue a request."""
        self.loop.apply(AddRequest(request_id, token_ids, sampling, 0.0))

    def abort(self, *targets: str | tuple[str, int]) -> None:
        """Abort requests, or single sequences."""
        self.loop.apply(AbortRequests(list(targets)))

    def step(self) -> None:
        """Run one step; its invariants are checked."""
        self.loop.next_step()

    def finish(self) -> None:
        """Step until nothing is left to do; also what waits for blocks from an archive."""
        while self.loop.has_work or (self.fetcher is not None and self.fetcher.num_waiting):
            self.receive()
            self.step()

    def receive(self) -> None:
        """Apply what other threads have put into the inbox, and wait for it if there is nothing else to do."""
        while not self.inbox.empty() or not self.loop.has_work:
            self.loop.apply(self.inbox.get())

    @property
    def holds_nothing(self) -> bool:
        """Whether every block is free, or held by the prefix cache alone."""
        return self.blocks.num_free_blocks + self.blocks.num_cached_blocks == self.blocks.num_usable_blocks

    def _take(self, outputs: StepOutputs) -> None:
        self.stats = outputs.stats
        for delta in outputs.deltas:
            key = (delta.request_id, delta.index)
            assert key not in self.reasons, "a sequence has news after its end"
            assert all(token_id >= 0 for token_id in delta.token_ids), "a placeholder came out"
            self.tokens.setdefault(key, []).extend(delta.token_ids)
            self.logprobs.setdefault(key, []).extend(delta.logprobs or [])
            if delta.prompt_logprobs is not None:
                self.prompt_logprobs[key] = delta.prompt_logprobs
            if delta.finish_reason is not None:
                self.reasons[key] = delta.finish_reason
                self.errors[key] = (delta.error, delta.error_kind)
