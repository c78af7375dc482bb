"""Attention of beams on a Hopper GPU: the prompts straight from the paged cache, the beams' own keys by a kernel that joins both.

Long prompts of few searches are attended in parts, so that all multiprocessors have work. Everything keeps to fixed addresses and
shapes, so that rounds can be captured. Knows nothing of how beams are chosen.
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
    """Keep the newest KV and attend; see `beams.Attend`. Uses `num_splits` and `max_beams`."""
    from xllm_kernels.cuda.beams import beam_join
    from xllm_kernels.cuda.prompts import prompt_attention

    assert metadata.ancestors is not None, "whoever makes a step of beams sets it"
    num_rows, num_heads, head_dim = query.shape
    attended = query.new_empty(metadata.num_splits, num_rows, num_heads, head_dim)
    lse = torch.empty(metadata.num_splits, num_heads, num_rows, dtype=torch.float32, device=query.device)
    prompt_attention(
        query,
        *kv_cache,
        metadata.query_start,
        metadata.seq_lens,
        block_tables=metadata.block_tables,
        out=attended,
        lse=lse,
        scale=scale,
        max_query_len=metadata.max_beams,
        is_causal=False,
    )
    return beam_join(query, key, value, attended, lse, *own, metadata.ancestors, scale)
