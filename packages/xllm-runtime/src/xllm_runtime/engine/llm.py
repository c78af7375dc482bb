"""The engine of a language model: one worker client a data-parallel rank, one pool size for all of them.

What may not be added here: who runs next (the scheduler), how a step is computed (the worker), how arrays are laid out
(`ForwardInputBuilder`), what a failure means for a request (the master). `execute` keeps no state between steps.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from xllm_framework.batch import Batch, BatchGroup, ForwardInput, ForwardInputBuilder, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import XLLMError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.auto_config import largest_chunk, max_model_len
from xllm_runtime.engine.archive import open_archive
from xllm_runtime.executor.warm_up import warm_up_input
from xllm_runtime.memory.file_archive import FileArchive
from xllm_runtime.platform import NULL_DEVICE, select_platform, selects_cpu
from xllm_runtime.worker import (
    LocalWorkerClient,
    QueuedWorkerClient,
    StartsSteps,
    ThreadedWorkerClient,
    WorkerClient,
    start_worker,
)

WARM_UP_TOKENS = 2

logger = logging.getLogger(__name__)


class LLMEngine:
    """Loads the model on every rank, agrees on a pool, and computes steps. Used by one thread.

    Raises:
        ModelLoadError: the model cannot be loaded.
        InvalidConfig: an option cannot be met on this machine.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        self.archive: FileArchive | None = None
        """Keeps blocks that leave the cache, for all ranks; None without one."""
        self._clients = _start_workers(config, files, args)
        try:
            self._prepare(config, files, args)
        except BaseException:
            self.close()
            raise

    def _prepare(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        """Agree on a pool and allocate it on every rank; then run a first step."""
        self.block_size = config.kv_cache.block_size
        self.cache_layout = self._clients[0].cache_layout
        """What is kept of a sequence: block tables, and maybe a state."""
        self.num_state_slots = self._allocate_states()
        """Slots of linear state on each rank, slot 0 included; 0 without."""
        self.num_blocks = min(client.num_blocks_that_fit(self.block_size) for client in self._clients)
        """Blocks of the pool on each rank, padding block 0 included."""
        chunk = largest_chunk(config.scheduler)
        num_pool_tokens = self.cache_layout.tokens_that_fit(self.num_blocks - 1, self.block_size, chunk)
        self.max_model_len = max_model_len(config, args, num_pool_tokens)
        """Tokens of prompt and output together that one sequence can hold: by model, option and pool."""
        for client in self._clients:
            client.allocate_kv_cache(self.num_blocks, self.block_size)
        self.num_host_blocks = int(config.kv_cache.host_blocks_factor * self.num_blocks)
        """Blocks in host memory on each rank."""
        if self.num_host_blocks:
            for client in self._clients:
                client.allocate_host_blocks(self.num_host_blocks)
        self.archive = open_archive(config.kv_cache, files, self._clients)
        self.num_ranks = len(self._clients)
        """Data-parallel ranks."""
        self._builder = ForwardInputBuilder(self.block_size, args.eos_token_ids, len(self.cache_layout.sliding_windows))
        first = self._clients[0]
        self.model_impl, self.device, self.dtype = first.model_impl, first.device, first.dtype
        self.vocab_size = first.vocab_size
        self.can_copy_blocks = all(client.can_copy_blocks for client in self._clients)
        self._warm_up()

    def _allocate_states(self) -> int:
        if not self.cache_layout.has_states:
            return 0
        num_slots = min(client.num_state_slots_that_fit() for client in self._clients)
        for client in self._clients:
            client.allocate_states(num_slots)
        return num_slots

    def execute(self, group: BatchGroup) -> list[ForwardOutput]:
        """Compute one step: one output a batch of `group`, of which there is one a rank.

        Nothing but KV in the scheduled slots changes, and random numbers depend on seed and position alone: a group
        that failed can be executed again, whole or one sequence at a time, with the same tokens.

        Raises:
            EngineDead: a worker is gone.
            XLLMError: the step failed on a worker; the message begins with the error's class, the log has its trace.
        """
        self.submit(group)
        return self.collect()

    def submit(self, group: BatchGroup) -> None:
        """Send one step to the workers and return while they compute it; at most two may be sent and not collected.

        A step that is sent before the one in front of it is collected may hold that one's tokens as placeholders, where
        the scheduler planned it so; this needs `enable_schedule_overlap`.
        """
        self._send([self._build(batch) for batch in group.batches])

    def collect(self) -> list[ForwardOutput]:
        """Wait for the oldest step that was sent; returns and raises as `execute` does."""
        outputs = [_collect(client) for client in self._clients]
        failures = [output for output in outputs if isinstance(output, XLLMError)]
        if failures:
            raise failures[0]
        return [output for output in outputs if isinstance(output, ForwardOutput)]

    def compute(self, forward_input: ForwardInput) -> None:
        """Compute one input on every rank, for its effects and the time that it takes; nothing may be in flight.

        All groups of layers use the input's one table. Raises as `execute` does.
        """
        more_groups = forward_input.groups * (len(self.cache_layout.sliding_windows) - 1)
        states = np.zeros((forward_input.num_sequences, 2), np.int32) if self.num_state_slots else None
        self._send([replace(forward_input, more_groups=more_groups, state_slots=states) for _ in self._clients])
        self.collect()

    def close(self) -> None:
        """Let the workers go; a second call does nothing."""
        for client in self._clients:
            client.close()
        if self.archive is not None:
            self.archive.close()

    def _build(self, batch: Batch) -> ForwardInput:
        """Return the input of one rank's batch."""
        return self._builder.build(batch)

    def _send(self, inputs: list[ForwardInput]) -> None:
        for client, forward_input in zip(self._clients, inputs, strict=True):
            client.submit(forward_input)

    def _warm_up(self) -> None:
        """Run a tiny step, so that the first request does not wait for what libraries do on first use."""
        self.compute(warm_up_input(min(WARM_UP_TOKENS, self.block_size)))


def _start_workers(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> list[WorkerClient]:
    """Return one client a rank.

    Several workers have threads of their own; so has one that computes while the next step is planned, unless its device has a queue.
    """
    num_ranks = config.parallel.dp_size
    if num_ranks == 1 and not config.scheduler.enable_schedule_overlap:
        return [LocalWorkerClient(start_worker(config, files, args))]
    if num_ranks == 1 and _has_queue(config.model.device):
        return [QueuedWorkerClient(cast("StartsSteps", start_worker(config, files, args)))]
    clients: list[WorkerClient] = []
    try:
        clients.extend(
            ThreadedWorkerClient(partial(start_worker, _rank_config(config, rank), files, args))
            for rank in range(num_ranks)
        )
    except BaseException:
        for client in clients:
            client.close()
        raise
    return clients


def _has_queue(device: str) -> bool:
    """Whether steps are started on `device` rather than computed by the thread that asks."""
    return device != NULL_DEVICE and not selects_cpu(device) and select_platform(device).name == "cuda"


def _rank_config(config: XLLMConfig, rank: int) -> XLLMConfig:
    """Return the options of one rank's worker: of several accelerators, it takes the one with its number."""
    device = config.model.device
    if config.parallel.dp_size == 1 or device == NULL_DEVICE or ":" in device or selects_cpu(device):
        return config
    kind = select_platform(device).name
    return replace(config, model=replace(config.model, device=f"{kind}:{rank}"))


def _collect(client: WorkerClient) -> ForwardOutput | XLLMError:
    """Return the output or the failure, never raise: the other ranks still have to be waited for."""
    try:
        return client.collect()
    except XLLMError as error:
        return error
    except Exception as error:  # whatever a model or a device library raises
        logger.error("A step failed on %s.", client.device, exc_info=error)
        failure = XLLMError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
