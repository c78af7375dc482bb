"""A worker in a thread of its own, so that whoever plans steps goes on while one is computed. Knows nothing of models.

The thread also makes the worker: how many cores a library uses is a property of the thread that asked for it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.batch.placeholders import replace_placeholders
from xllm_framework.errors import EngineDead
from xllm_runtime.worker.client import PutPayload, Worker, execute_step

_Call = Callable[[Worker], object]


class ThreadedWorkerClient:
    """See `WorkerClient`. Two steps may be submitted before the first is collected; they run in that order.

    The second may hold tokens of the first as placeholders; they are replaced between the two. If the first fails, such a
    second one fails too.

    Args:
        create: makes the worker, on its thread; what it raises is raised here.
    """

    def __init__(self, create: Callable[[], Worker]) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        """One result or exception a call, in order."""
        self._steps = _Steps()
        run = (create, self._calls, self._results)
        self._thread = threading.Thread(target=_run, args=run, name="xllm-worker", daemon=True)
        self._thread.start()
        # A client that nobody closes: thread and worker go with it. Not at the interpreter's end, when the engine above may still step.
        weakref.finalize(self, self._calls.put, None).atexit = False
        worker = cast("Worker", self._take())
        self.model_impl, self.device, self.dtype = worker.model_impl, worker.device, worker.dtype
        self.vocab_size, self.can_copy_blocks = worker.vocab_size, worker.can_copy_blocks
        self.cache_layout = worker.cache_layout

    def num_state_slots_that_fit(self) -> int:
        """See `Worker.num_state_slots_that_fit`."""
        self._put(lambda worker: worker.num_state_slots_that_fit())
        return cast("int", self._take())

    def allocate_states(self, num_slots: int) -> None:
        """See `Worker.allocate_states`."""
        self._put(lambda worker: worker.allocate_states(num_slots))
        self._take()

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`."""
        self._put(lambda worker: worker.num_blocks_that_fit(block_size))
        return cast("int", self._take())

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self._put(lambda worker: worker.allocate_kv_cache(num_blocks, block_size))
        self._take()

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """See `Worker.allocate_host_blocks`."""
        self._put(lambda worker: worker.allocate_host_blocks(num_host_blocks))
        self._take()

    def attach_archive(self, put: PutPayload) -> None:
        """See `Worker.attach_archive`."""
        self._put(lambda worker: worker.attach_archive(put))
        self._take()

    def payload_bytes(self) -> int:
        """See `Worker.payload_bytes`."""
        self._put(lambda worker: worker.payload_bytes())
        return cast("int", self._take())

    def submit(self, forward_input: ForwardInput) -> None:
        """See `WorkerClient.submit`."""
        steps = self._steps
        self._put(lambda worker: steps.execute(worker, forward_input))

    def collect(self) -> ForwardOutput:
        """See `WorkerClient.collect`."""
        return cast("ForwardOutput", self._take())

    def close(self) -> None:
        """End the thread after what was submitted; a second call does nothing."""
        self._calls.put(None)
        self._thread.join()

    def _put(self, call: _Call) -> None:
        self._calls.put(call)

    def _take(self) -> object:
        result: object = EngineDead("The worker is closed.")
        while self._thread.is_alive() or not self._results.empty():
            try:
                result = self._results.get(timeout=1.0)
                break
            except queue.Empty:
                continue
        if isinstance(result, BaseException):
            raise result
        return result


class _Steps:
    """Steps on the worker's thread, each with the tokens of the one before."""

    def __init__(self) -> None:
        self._drawn: npt.NDArray[np.int32] | None = None
        """The latest step's tokens; None if it failed."""

    def execute(self, worker: Worker, forward_input: ForwardInput) -> ForwardOutput:
        drawn, self._drawn = self._drawn, None
        moves, forward_input.moves = forward_input.moves, None
        if moves is not None:  # first, because they must happen even if the step before failed
            worker.move_blocks(moves)
        replace_placeholders(forward_input, drawn)
        output = execute_step(worker, forward_input)
        self._drawn = output.token_ids
        return output


def _run(
    create: Callable[[], Worker], calls: queue.SimpleQueue[_Call | None], results: queue.SimpleQueue[object]
) -> None:
    try:
        worker = create()
    except BaseException as error:  # raised again where the result is taken
        results.put(error)
        return
    results.put(worker)
    while (call := calls.get()) is not None:
        try:
            results.put(call(worker))
        except BaseException as error:  # raised again where the result is taken
            results.put(error)
