"""Products of few rows with the 8-bit matrices of experts in Triton. Knows nothing of routing or of models.

Rows are pairs of a token and one of its experts, ordered by expert; an expert without rows costs nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xllm_kernels.quantised_matrix import QuantisedMatrix
from xllm_kernels.triton.quantised_product import STORED

ROWS, OUTPUTS = 16, 32
"""Of a tile."""


@triton.jit
def _tile(
    x, tokens, is_row, values, row_scales, block_scales, outputs, k,
    HAS_ROWS: tl.constexpr, HAS_BLOCKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """[M, N] of x[tokens] W[outputs]^T."""
    columns = tl.arange(0, 128)
    num_groups = k // 128
    total = tl.zeros((M, N), tl.float32)
    for group in range(num_groups):
        part = tl.load(x + tokens[:, None] * k + group * 128 + columns[None, :], mask=is_row[:, None], other=0.0)
        numbers = tl.load(values + outputs[None, :] * k + group * 128 + columns[:, None]).to(part.dtype)
        if HAS_BLOCKS:
            total += tl.dot(part, numbers) * tl.load(block_scales + outputs // 128 * num_groups + group)[None, :]
        else:
            total = tl.dot(part, numbers, total)
    if HAS_ROWS:
        total *= tl.load(row_scales + outputs)[None, :]
    return total


@triton.jit
def _experts_kernel(
    x, token_of_row, starts, values, row_scales, block_scales, out, n, k,
    GATHERS: tl.constexpr, GATED: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_BLOCKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Outputs [N] of one expert for all its rows; `n` outputs an expert, of which a gated one has twice as many rows of W."""
    expert, block = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(starts + expert), tl.load(starts + expert + 1)
    columns = block * N + tl.arange(0, N)
    outputs = expert.to(tl.int64) * (2 * n if GATED else n) + columns
    for start in range(first, last, M):
        rows = start + tl.arange(0, M)
        is_row = rows < last
        tokens = (tl.load(token_of_row + rows, mask=is_row, other=0) if GATHERS else rows).to(tl.int64)
        total = _tile(x, tokens, is_row, values, row_scales, block_scales, outputs, k, HAS_ROWS, HAS_BLOCKS, M, N)
        if GATED:
            up = _tile(x, tokens, is_row, values, row_scales, block_scales, outputs + n, k, HAS_ROWS, HAS_BLOCKS, M, N)
            total = total * tl.sigmoid(total) * up
        place = rows.to(tl.int64)[:, None] * n + columns[None, :]
        tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row[:, None])


def run_quantised_experts(
    x: torch.Tensor, gate_up: QuantisedMatrix, down: QuantisedMatrix, token_of_row: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    """Return [P, H], row by row: down[e] (silu(gate[e] x[t]) * (up[e] x[t])) of each pair's expert e and token t.

    x [T, H], bfloat16 or float16; gate_up [E 2 I, H], each expert's gate before its other half; down [E H, I], both of 8 bits;
    token_of_row int32 [P]; starts int32 [E + 1]. H and I are multiples of 128.
    """
    num_experts, hidden = len(starts) - 1, x.shape[1]
    inner = down.k
    gated = torch.empty((len(token_of_row), inner), dtype=x.dtype, device=x.device)
    out = torch.empty((len(token_of_row), hidden), dtype=x.dtype, device=x.device)
    for source, matrix, result, n, is_gated in ((x, gate_up, gated, inner, True), (gated, down, out, hidden, False)):
        _experts_kernel[(num_experts, n // OUTPUTS)](
            source, token_of_row, starts, matrix.values.view(STORED[matrix.kind]),
            source if matrix.row_scales is None else matrix.row_scales,
            source if matrix.block_scales is None else matrix.block_scales, result, n, matrix.k,
            GATHERS=is_gated, GATED=is_gated, HAS_ROWS=matrix.row_scales is not None,
            HAS_BLOCKS=matrix.block_scales is not None, M=ROWS, N=OUTPUTS, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out
