"""The operations in plain numpy, float32, for tests and for reading. Speed is no concern here.

Functions have the names of `xllm_kernels.ops` but return new arrays and change no argument.
"""

from __future__ import annotations

from xllm_kernels.reference.beam_attention import beam_attention
from xllm_kernels.reference.beam_select import beam_select
from xllm_kernels.reference.paged_attention import paged_attention
from xllm_kernels.reference.rms_norm import add_rms_norm, rms_norm
from xllm_kernels.reference.rotary_embedding import rotary_embedding
from xllm_kernels.reference.silu_and_mul import silu_and_mul
from xllm_kernels.reference.write_kv import write_kv

__all__ = [
    "add_rms_norm",
    "beam_attention",
    "beam_select",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "write_kv",
]
