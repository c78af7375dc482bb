"""Attention of beams on a GPU: the prompts by the FlashAttention in torch, the beams' own keys by a kernel that joins both.

The prompts' keys are gathered from the paged cache, which moves each once, little beside the products of many beams with it.
Long prompts of few searches are attended in parts, so that all multiprocessors have work.
Everything keeps to fixed addresses and shapes, so that rounds can be captured. Knows nothing of how beams are chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from xllm_runtime.attention.beams import BeamMetadata, KVPair


def attend_on_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KVPair,
    own: KVPair,
    metadata: BeamMetadata,
    scale: float,
) -> torch.Tensor:
    """Keep the newest KV and attend; see `beams.Attend`. Uses `prompt_slots`, `prompt_start` and `max_prompt_len`."""
    from xllm_kernels.cuda.beams import beam_join

    assert metadata.prompt_slots is not None, "whoever makes a step of beams on a GPU sets it"
    assert metadata.ancestors is not None
    assert metadata.prompt_start is not None
    slots = metadata.prompt_slots
    prompt_key, prompt_value = (cache.flatten(0, 1).index_select(0, slots) for cache in kv_cache)
    num_splits, num_beams = metadata.num_splits, metadata.max_beams
    queries, query_start = query, metadata.query_start
    if num_splits > 1:
        parts = query.reshape(-1, 1, num_beams, *query.shape[1:])
        queries = parts.expand(-1, num_splits, -1, -1, -1).flatten(0, 2)
        query_start = torch.arange(len(metadata.prompt_start), dtype=torch.int32, device=query.device) * num_beams
    attended, lse = torch.ops.aten._flash_attention_forward(
        queries,
        prompt_key,
        prompt_value,
        query_start,
        metadata.prompt_start,
        num_beams,
        metadata.max_prompt_len,
        0.0,
        False,
        False,
        scale=scale,
    )[:2]
    return beam_join(
        query,
        key,
        value,
        attended,
        lse,
        *own,
        metadata.ancestors,
        scale,
        num_splits=num_splits,
        rows_per_search=num_beams,
    )
