"""How many blocks of KV a device holds. Knows nothing of tensors, or of which sequence owns which block."""

from __future__ import annotations

from dataclasses import dataclass, field

from xllm_framework.config import KVCacheConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import CacheLayout
from xllm_framework.kv_cache.state_slots import SLOTS_A_SEQUENCE
from xllm_runtime.models.interface import KVCacheShape, StateShape
from xllm_runtime.platform import DeviceMemory

CPU_CACHE_BYTES = 256 * 2**20
"""KV cache on CPU when nobody says more, unless one sequence of the full context needs more."""
PADDING_BLOCKS = 1
"""Block 0 belongs to nobody: padded rows read and write there."""
MIN_BLOCKS = PADDING_BLOCKS + 1


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What could be used at most: `max_num_seqs` sequences of `max_model_len` tokens each, computed by chunks of `chunk`."""

    max_model_len: int
    max_num_seqs: int
    layout: CacheLayout = field(default_factory=CacheLayout)
    chunk: int = 2048

    def num_blocks(self, block_size: int, num_sequences: int) -> int:
        """Return the pool that `num_sequences` full sequences need, padding included."""
        return PADDING_BLOCKS + num_sequences * self.layout.blocks_of_sequence(
            self.max_model_len, block_size, self.chunk
        )


def num_blocks_that_fit(
    config: KVCacheConfig, demand: CacheDemand, block_bytes: int, block_size: int, memory: DeviceMemory, *, is_cpu: bool
) -> int:
    """Return the size of the pool in blocks of `block_bytes` bytes, padding included; weights are loaded already.

    `num_blocks` is taken as it is. Otherwise the pool is what `max_cache_size` holds, or what memory allows: on an
    accelerator, `memory_utilization` of all its memory less what is used; on CPU, where others need memory too, that
    share of what is available, and no more than `CPU_CACHE_BYTES` or one full sequence. Never more than `demand`.

    Raises:
        InvalidConfig: the pool would hold no block, or more than there is memory for; names the option to change.
    """
    needed = demand.num_blocks(block_size, demand.max_num_seqs)
    if config.num_blocks:
        return _checked(config.num_blocks, block_bytes, memory, f"num_blocks {config.num_blocks}")
    if config.max_cache_size:
        fitting = min(needed, config.max_cache_size // block_bytes)
        return _checked(fitting, block_bytes, memory, f"max_cache_size {config.max_cache_size}")
    if is_cpu:
        budget = int(memory.available_bytes * config.memory_utilization)
        default = max(CPU_CACHE_BYTES // block_bytes, demand.num_blocks(block_size, 1))
        fitting = min(budget // block_bytes, default)
    else:
        used_bytes = memory.total_bytes - memory.available_bytes
        fitting = int(memory.total_bytes * config.memory_utilization - used_bytes) // block_bytes
    origin = f"memory_utilization {config.memory_utilization} of {memory.available_bytes} available bytes"
    return _checked(min(needed, fitting), block_bytes, memory, origin)


def _checked(num_blocks: int, block_bytes: int, memory: DeviceMemory, origin: str) -> int:
    if num_blocks < MIN_BLOCKS:
        raise InvalidConfig(
            f"The KV cache needs {MIN_BLOCKS} blocks or more (one is padding), but {origin} gives fewer."
        )
    num_bytes = num_blocks * block_bytes
    if num_bytes > memory.available_bytes:
        raise InvalidConfig(
            f"{origin} makes a KV cache of {num_bytes} bytes, but only {memory.available_bytes} are available."
        )
    return num_blocks


def block_bytes(shapes: list[KVCacheShape], block_size: int) -> int:
    """Return the bytes of one block over all layers, at least 1."""
    return max(1, block_size * sum(shape.num_bytes_per_token for shape in shapes))


def state_bytes(shapes: list[StateShape]) -> int:
    """Return the bytes of one slot of linear state over all layers, at least 1."""
    return max(1, sum(shape.num_bytes for shape in shapes))


def num_state_slots_that_fit(config: KVCacheConfig, demand: CacheDemand, slot_bytes: int, memory: DeviceMemory) -> int:
    """Return how many slots of linear state to have, of `slot_bytes` bytes each, slot 0 included; weights are loaded already.

    `num_state_slots` is taken as it is. Otherwise so many as all sequences take at once and as many again for saved states; but
    no more than half of what memory allows.

    Raises:
        InvalidConfig: not even one sequence has room.
    """
    if config.num_state_slots:
        num_slots = config.num_state_slots
    else:
        wanted = 1 + 2 * SLOTS_A_SEQUENCE * demand.max_num_seqs
        num_slots = min(wanted, int(memory.available_bytes * config.memory_utilization / 2) // slot_bytes)
    if num_slots <= SLOTS_A_SEQUENCE or num_slots * slot_bytes > memory.available_bytes:
        raise InvalidConfig(
            f"num_state_slots {num_slots} of {slot_bytes} bytes each cannot be: a sequence takes {SLOTS_A_SEQUENCE} beside "
            f"slot 0, and {memory.available_bytes} bytes are available."
        )
    return num_slots
