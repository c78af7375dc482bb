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
from xllm_runtime.worker.client import Worker
from xllm_runtime.worker.in_process import InProcessClient


class StartsSteps(Worker, Protocol):
    """A worker that can start a step and be asked for its output later."""

    def begin(self, forward_input: ForwardInput, before: PendingOutput | None) -> PendingOutput:
        """Start a step; it may hold tokens of `before`, the step started last, as placeholders."""


class QueuedWorkerClient(InProcessClient[StartsSteps]):
    """See `WorkerClient`. Two steps may be submitted before the first is collected; the second may hold placeholders of the first."""

    def __init__(self, worker: StartsSteps) -> None:
        super().__init__(worker)
        self._steps: deque[PendingOutput | Exception] = deque()
        self._before: PendingOutput | Exception | None = None

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
        super().close()
        self._steps.clear()
        self._before = None

    def _begin(self, forward_input: ForwardInput) -> PendingOutput:
        worker, before = self.worker, self._before
        if forward_input.moves is not None:  # first, because they must happen even if the step cannot be computed
            worker.move_blocks(forward_input.moves)
        if forward_input.num_sequences == 0:
            return FinishedOutput(ForwardOutput(np.empty(0, np.int32)))
        if before is None or isinstance(before, Exception):
            replace_placeholders(forward_input, None)  # fails where there is one
            before = None
        return worker.begin(forward_input, before)
