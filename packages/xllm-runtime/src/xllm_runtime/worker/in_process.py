"""Workers in the process of their engine. Knows nothing of models, nor of when a step is computed."""

from __future__ import annotations

from typing import Generic, TypeVar

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.errors import EngineDead
from xllm_runtime.worker.client import PutPayload, Worker, execute_step

WorkerT = TypeVar("WorkerT", bound=Worker)


class InProcessClient(Generic[WorkerT]):
    """What every `WorkerClient` asks of a worker in this process and thread, but for steps."""

    def __init__(self, worker: WorkerT) -> None:
        self.model_impl, self.device, self.dtype = worker.model_impl, worker.device, worker.dtype
        self.vocab_size, self.can_copy_blocks = worker.vocab_size, worker.can_copy_blocks
        self.cache_layout = worker.cache_layout
        self._worker: WorkerT | None = worker

    @property
    def worker(self) -> WorkerT:
        """The worker. Raises `EngineDead` once it is closed."""
        if self._worker is None:
            raise EngineDead("The worker is closed.")
        return self._worker

    def num_state_slots_that_fit(self) -> int:
        """See `Worker.num_state_slots_that_fit`."""
        return self.worker.num_state_slots_that_fit()

    def allocate_states(self, num_slots: int) -> None:
        """See `Worker.allocate_states`."""
        self.worker.allocate_states(num_slots)

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`."""
        return self.worker.num_blocks_that_fit(block_size)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self.worker.allocate_kv_cache(num_blocks, block_size)

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """See `Worker.allocate_host_blocks`."""
        self.worker.allocate_host_blocks(num_host_blocks)

    def attach_archive(self, put: PutPayload) -> None:
        """See `Worker.attach_archive`."""
        self.worker.attach_archive(put)

    def payload_bytes(self) -> int:
        """See `Worker.payload_bytes`."""
        return self.worker.payload_bytes()

    def close(self) -> None:
        """See `WorkerClient.close`."""
        self._worker = None


class LocalWorkerClient(InProcessClient[Worker]):
    """See `WorkerClient`. `collect` computes, so that ranks elsewhere already compute meanwhile."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._submitted: ForwardInput | None = None

    def submit(self, forward_input: ForwardInput) -> None:
        """See `WorkerClient.submit`."""
        self._submitted = forward_input

    def collect(self) -> ForwardOutput:
        """See `WorkerClient.collect`."""
        forward_input, self._submitted = self._submitted, None
        if forward_input is None:
            raise EngineDead("A step was collected from a worker that was given none.")
        return execute_step(self.worker, forward_input)
