"""The cache domain: which blocks hold the KV of which tokens. Ids and arithmetic only; knows nothing of tensors."""

from xllm_framework.kv_cache.archive import BlockArchive, plan_restore
from xllm_framework.kv_cache.block_manager import BlockManager
from xllm_framework.kv_cache.block_pool import BlockPool
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier
from xllm_framework.kv_cache.layer_groups import LayerGroup, layer_groups
from xllm_framework.kv_cache.layout import CacheLayout
from xllm_framework.kv_cache.prefix_cache import HashPrefixCache, PrefixCache, new_secret
from xllm_framework.kv_cache.prefix_match import NO_MATCH, PrefixMatch
from xllm_framework.kv_cache.state_slots import StateSlots

__all__ = [
    "NO_MATCH",
    "BlockArchive",
    "BlockManager",
    "BlockMoves",
    "BlockPool",
    "CacheLayout",
    "HashPrefixCache",
    "HostTier",
    "LayerGroup",
    "PrefixCache",
    "PrefixMatch",
    "StateSlots",
    "layer_groups",
    "new_secret",
    "plan_restore",
]
