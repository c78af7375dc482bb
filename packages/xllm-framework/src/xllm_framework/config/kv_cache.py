"""How much KV cache there is and how it is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVCacheDType = Literal["auto", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """KV cache options."""

    block_size: int = 16
    """Tokens a block."""
    num_blocks: int = 0
    """Blocks of the pool; 0 sizes it from `max_cache_size`, or from free memory."""
    max_cache_size: int = 0
    """Bytes of KV cache; 0 takes what memory allows, on CPU at most 256 MiB or one sequence of the full context."""
    memory_utilization: float = 0.8
    """Share of the device's memory for weights and KV cache."""
    kv_cache_dtype: KVCacheDType = "auto"
    """Type of the numbers in the cache: auto is the model's; fp8 (e4m3) takes half the memory of bfloat16, with the checkpoint's scales
    where it has some. Llama-shaped models on torch (model_impl python)."""
    enable_prefix_cache: bool = True
    """Reuse the KV of prompts that begin alike."""
    num_state_slots: int = 0
    """Slots of linear state, of models that have one: two a running sequence, the rest keep states for later prompts that begin
    alike; 0 sizes them by `max_num_seqs` and memory."""
    state_stride: int = 256
    """Tokens between the places of a sequence where its linear state is kept; a multiple of `block_size`."""
    host_blocks_factor: float = 0.0
    """Blocks that leave the prefix cache are kept in host memory, this many for each block of the device; 0 keeps none.
    Needs the prefix cache."""
    archive_path: str = ""
    """Folder where blocks that leave the prefix cache are kept in files, also for later starts; empty keeps none. Fetched when
    a request arrives, where that is faster than computing. Needs the prefix cache."""
    max_archive_size: int = 4 * 2**30
    """Bytes of these files; the least recently used are removed."""
