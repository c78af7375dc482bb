"""How many blocks of KV a device holds. Knows nothing of tensors, or of which sequence owns which block."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.config import KVCacheConfig
from xllm_framework.errors import InvalidConfig
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.platform import DeviceMemory

CPU_CACHE_BYTES = 256 * 2**20
"""KV cache on CPU when nobody says more, unless one sequence of the full context needs more."""
PADDING_BLOCKS = 1
"""Block 0 belongs to nobody: padded rows read and write there."""
MIN_BLOCKS = PADDING_BLOCKS + 1


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What could be used at most: `max_num_seqs` sequences of `max_model_len` tokens each."""

    max_model_len: int
    max_num_seqs: int

    def num_blocks(self, block_size: int, num_sequences: int) -> int:
        """Return the pool that `num_sequences` full sequences need, padding included."""
        return PADDING_BLOCKS + num_sequences * -(-self.max_model_len // block_size)


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
