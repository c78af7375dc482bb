"""The operations once more in Triton: a second source for GPUs that the CUDA kernels are not built for. Imports torch and triton.

`rows` has what works on rows, `images` what diffusion transformers need, `vision` what vision towers need, `decode_attention` and
`prefill_attention` attend over the paged cache. All are bfloat16 or float16 in and out, computed in float32. Kernels start on
torch's current stream and return without waiting; each is compiled when it is first called with its sizes, in a second or two;
Triton keeps what it compiled on disk.
"""

from __future__ import annotations

from functools import cache


@cache
def why_no_triton() -> str | None:
    """Why nothing here can run on this machine; None where it can. Compiles and runs a small kernel the first time."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        from xllm_kernels.triton.rows import silu_and_mul

        silu_and_mul(torch.zeros((1, 32), dtype=torch.bfloat16, device="cuda"))
    except Exception as error:  # no Triton, no C compiler, no headers, no permission to write: each its own class
        return f"Triton cannot compile here ({type(error).__name__}: {error})"
    return None
