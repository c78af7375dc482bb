"""The cache domain: which blocks hold the KV of which tokens. Ids and arithmetic only; knows nothing of tensors."""

from xllm_framework.kv_cache.archive import BlockArchive, plan_restore
from xllm_framework.kv_cache.block_manager import BlockManager
from xllm_framework.kv_cache.block_pool import BlockPool
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier
from xllm_framework.kv_cache.prefix_cache import HashPrefixCache, PrefixCache, new_secret

__all__ = [
    "BlockArchive",
    "BlockManager",
    "BlockMoves",
    "BlockPool",
    "HashPrefixCache",
    "HostTier",
    "PrefixCache",
    "new_secret",
    "plan_restore",
]
