"""How an engine talks to a worker. The engine cannot tell a worker in its own process from one far away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.kv_cache import BlockMoves, CacheLayout

PutPayload = Callable[[bytes, bytes], None]
"""Takes a key and the payload of its block."""


class WorkerSetup(Protocol):
    """What an engine asks of a rank before its first step, and what it learns of it."""

    model_impl: str
    device: str
    dtype: str
    vocab_size: int
    can_copy_blocks: bool
    """Whether `ForwardInput.block_copies` are obeyed."""
    cache_layout: CacheLayout
    """What `ForwardInput` must bring: as many groups' tables, and slots if there are states."""

    def num_state_slots_that_fit(self) -> int:
        """Return how many slots of linear state to have, slot 0 included; comes before `num_blocks_that_fit`."""

    def allocate_states(self, num_slots: int) -> None:
        """Allocate slots of linear state and bind them to the model. Both methods only for a layout with states."""

    def num_blocks_that_fit(self, block_size: int) -> int:
        """Return the size of the KV cache pool in blocks of `block_size` tokens, padding block 0 included."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Allocate the pool, zeroed, and bind it to the model."""

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """Allocate blocks in host memory beside the pool. Raises `InvalidConfig` unless `can_copy_blocks`."""

    def attach_archive(self, put: PutPayload) -> None:
        """Give what `BlockMoves.to_archive` names to `put`, on any thread. Raises `InvalidConfig` where blocks cannot be read."""

    def payload_bytes(self) -> int:
        """Return the bytes of all KV of a block; 0 where blocks cannot be read."""


class Worker(WorkerSetup, Protocol):
    """One rank: a device with a model, which constructing it loads. `allocate_kv_cache` comes before `execute`."""

    def move_blocks(self, moves: BlockMoves) -> None:
        """Move blocks between device, host and archive, and copy states."""

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Compute one step. Nothing but KV in the input's slots changes, so a step that raised can be repeated."""


def execute_step(worker: Worker, forward_input: ForwardInput) -> ForwardOutput:
    """Move blocks, which must happen even if the step cannot be computed; then compute it, unless the rank has no work."""
    if forward_input.moves is not None:
        worker.move_blocks(forward_input.moves)
    if forward_input.num_sequences == 0:
        return ForwardOutput(np.empty(0, np.int32))
    return worker.execute(forward_input)


class WorkerClient(WorkerSetup, Protocol):
    """A worker seen from an engine. A step is sent to all ranks before any is waited for."""

    def submit(self, forward_input: ForwardInput) -> None:
        """Send one step. Never raises what the worker raises.

        Exactly one `collect` follows before the next `submit`, or before the one after that if the client's class says so.
        """

    def collect(self) -> ForwardOutput:
        """Wait for the step's output. Raises what the worker raised, or `EngineDead` when the worker is gone."""

    def close(self) -> None:
        """Let the worker go; a second call does nothing."""
