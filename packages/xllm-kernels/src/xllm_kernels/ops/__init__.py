"""The operations: thin functions over the extension module, one file each.

Every one takes torch CPU tensors or numpy arrays in float32 or (torch only) bfloat16, computes in float32, rounds once,
releases the GIL, and raises ValueError or TypeError naming the argument that does not fit. Rows (dimension 0) may be
strided; the rest must be contiguous.
"""

from __future__ import annotations

from xllm_kernels.ops.beam_attention import beam_attention
from xllm_kernels.ops.beam_select import beam_select
from xllm_kernels.ops.dense_linear import dense_linear
from xllm_kernels.ops.joint_attention import joint_attention
from xllm_kernels.ops.modulation import add_gated, gelu, modulated_norm
from xllm_kernels.ops.paged_attention import paged_attention
from xllm_kernels.ops.rms_norm import add_rms_norm, rms_norm
from xllm_kernels.ops.rotary_embedding import rotary_embedding
from xllm_kernels.ops.silu_and_mul import silu_and_mul
from xllm_kernels.ops.write_kv import write_kv

__all__ = [
    "add_gated",
    "add_rms_norm",
    "beam_attention",
    "beam_select",
    "dense_linear",
    "gelu",
    "joint_attention",
    "modulated_norm",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "write_kv",
]
