"""A worker on a device with a queue of its own, so that a step is started while the one before it is still computed.

No thread is needed: starting a step takes the host less time than the device takes for it. Knows nothing of models.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.batch.placeholders import replace_placeholders
from xllm_framework.errors import EngineDead
from xllm_runtime.executor.interface import FinishedOutput, PendingOutput
from xllm_runtime.worker.client import PutPayload, Worker


class StartsSteps(Worker, Protocol):
    """A worker that can start a step and be asked for its output later."""

    def begin(self, forward_input: ForwardInput, before: PendingOutput | None) -> PendingOutput:
        """Start a step; it may hold tokens of `before`, the step started last, as placeholders."""


class QueuedWorkerClient:
    """See `WorkerClient`. Two steps may be submitted before the first is collected; the second may hold placeholders of the first."""

    def __init__(self, worker: StartsSteps) -> None:
        self.model_impl, self.device, self.dtype = worker.model_impl, worker.device, worker.dtype
        self.vocab_size, self.can_copy_blocks = worker.vocab_size, worker.can_copy_blocks
        self.cache_layout = worker.cache_layout
        self._worker: StartsSteps | None = worker
        self._steps: deque[PendingOutput | Exception] = deque()
        self._before: PendingOutput | Exception | None = None

    def num_state_slots_that_fit(self) -> int:
        """See `Worker.num_state_slots_that_fit`."""
        return self._living_worker().num_state_slots_that_fit()

    def allocate_states(self, num_slots: int) -> None:
        """See `Worker.allocate_states`."""
        self._living_worker().allocate_states(num_slots)

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`."""
        return self._living_worker().num_blocks_that_fit(block_size)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self._living_worker().allocate_kv_cache(num_blocks, block_size)

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """See `Worker.allocate_host_blocks`."""
        self._living_worker().allocate_host_blocks(num_host_blocks)

    def attach_archive(self, put: PutPayload) -> None:
        """See `Worker.attach_archive`."""
        self._living_worker().attach_archive(put)

    def payload_bytes(self) -> int:
        """See `Worker.payload_bytes`."""
        return self._living_worker().payload_bytes()

    def submit(self, forward_input: ForwardInput) -> None:
        """See `WorkerClient.submit`."""
        try:
            step: PendingOutput | Exception = self._begin(forward_input)
        except Exception as error:  # whatever a model raises; raised again where the output is taken
            step = error
        self._before = step
        self._steps.append(step)

    def collect(self) -> ForwardOutput:
        """See `WorkerClient.collect`."""
        if not self._steps:
            raise EngineDead("A step was collected from a worker that was given none.")
        step = self._steps.popleft()
        if isinstance(step, Exception):
            raise step
        return step.wait()

    def close(self) -> None:
        """See `WorkerClient.close`."""
        self._worker = None
        self._steps.clear()
        self._before = None

    def _begin(self, forward_input: ForwardInput) -> PendingOutput:
        worker, before = self._living_worker(), self._before
        if forward_input.moves is not None:  # first, because they must happen even if the step cannot be computed
            worker.move_blocks(forward_input.moves)
        if forward_input.num_sequences == 0:
            return FinishedOutput(ForwardOutput(np.empty(0, np.int32)))
        if before is None or isinstance(before, Exception):
            replace_placeholders(forward_input, None)  # fails where there is one
            before = None
        return worker.begin(forward_input, before)

    def _living_worker(self) -> StartsSteps:
        if self._worker is None:
            raise EngineDead("The worker is closed.")
        return self._worker
