"""Products with quantised matrices in Triton: numbers are widened in registers, sums are float32. Knows nothing of models or checkpoints.

The portable way for any number of rows; `xllm_kernels.cuda.quantised` is faster for few rows on Hopper GPUs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xllm_kernels.quantised_matrix import GROUP_COLUMNS, QuantisedMatrix, WeightKind


@triton.jit
def _product_kernel(
    x, values, row_scales, block_scales, groups, bias, out, num_rows, n, k,
    INT4: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_BLOCKS: tl.constexpr, HAS_BIAS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One tile [M, N] of out; a step is a group of 128 columns. For 4 bits x comes with its columns in the order of `in_stored_order`."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    outputs = tl.program_id(1) * N + tl.arange(0, N)
    is_row, is_output = rows < num_rows, outputs < n
    columns = tl.arange(0, 128)
    num_groups = tl.cdiv(k, 128)
    total = tl.zeros((M, N), tl.float32)
    for group in range(num_groups):
        x_tile = tl.load(
            x + rows.to(tl.int64)[:, None] * k + group * 128 + columns[None, :], mask=is_row[:, None], other=0.0
        )
        if INT4:
            places, words = tl.arange(0, 8), tl.arange(0, 16)
            at = (group // 2) * 32 + (2 * (words // 4) + group % 2) * 4 + words % 4
            width = tl.cdiv(k, 256) * 32
            packed = tl.load(
                values + outputs.to(tl.int64)[None, :] * width + at[:, None], mask=is_output[None, :], other=0
            )
            info = tl.load(groups + group * n + outputs, mask=is_output, other=0)
            numbers = (packed[None, :, :] >> (places * 4)[:, None, None]) & 15
            numbers = tl.reshape(numbers, (128, N)) - (info & 31)[None, :]
            scale = (info & -32).to(tl.float32, bitcast=True)
            total += tl.dot(x_tile, numbers.to(x_tile.dtype)) * scale[None, :]
        else:
            place = outputs.to(tl.int64)[None, :] * k + group * 128 + columns[:, None]
            numbers = tl.load(values + place, mask=is_output[None, :], other=0.0).to(x_tile.dtype)
            if HAS_BLOCKS:
                scale = tl.load(block_scales + (outputs // 128) * num_groups + group, mask=is_output, other=0.0)
                total += tl.dot(x_tile, numbers) * scale[None, :]
            else:
                total = tl.dot(x_tile, numbers, total)
    if HAS_ROWS:
        total *= tl.load(row_scales + outputs, mask=is_output, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = rows.to(tl.int64)[:, None] * n + outputs[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


def quantised_product(x: torch.Tensor, matrix: QuantisedMatrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x matrix^T + bias: contiguous x [M, k], bfloat16 or float16 -> [M, n]; k is a multiple of 128."""
    num_rows, n = len(x), matrix.n
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    rows = min(128, max(16, triton.next_power_of_2(num_rows)))
    outputs = 32 if rows <= 32 else 64 if rows <= 64 else 128
    is_int4 = matrix.kind == WeightKind.INT4
    _product_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(n, outputs))](
        in_stored_order(x) if is_int4 else x,
        matrix.values if is_int4 else matrix.values.view(STORED[matrix.kind]),
        _or(matrix.row_scales, x), _or(matrix.block_scales, x), _or(matrix.groups, x), _or(bias, x), out, num_rows, n, matrix.k,
        INT4=is_int4, HAS_ROWS=matrix.row_scales is not None, HAS_BLOCKS=matrix.block_scales is not None,
        HAS_BIAS=bias is not None, M=rows, N=outputs, num_warps=4 if outputs < 128 else 8, num_stages=3,
    )  # fmt: skip
    return out


STORED = {WeightKind.FLOAT8: torch.float8_e4m3fn, WeightKind.INT8: torch.int8}
"""What the words of an 8-bit matrix hold."""


def in_stored_order(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x [M, k] in which column 16 p + 4 t + w of each 128 is what place p of words (t, w) multiplies."""
    order = x.view(len(x), -1, 4, 4, 4, 2)  # [row, group, t, w, i, low or high half]
    return order.permute(0, 1, 5, 4, 2, 3).reshape(len(x), -1)


def _or(tensor: torch.Tensor | None, stand_in: torch.Tensor) -> torch.Tensor:
    return stand_in if tensor is None else tensor


@triton.jit
def _numbers_kernel(
    values, row_scales, block_scales, out, k, HAS_ROWS: tl.constexpr, HAS_BLOCKS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    is_there = columns < k
    numbers = tl.load(values + row * k + columns, mask=is_there, other=0.0).to(tl.float32)
    if HAS_BLOCKS:
        numbers *= tl.load(block_scales + (row // 128) * tl.cdiv(k, 128) + columns // 128, mask=is_there, other=0.0)
    if HAS_ROWS:
        numbers *= tl.load(row_scales + row)
    tl.store(out + row * k + columns, numbers.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _int4_numbers_kernel(values, groups, out, n, k, COLUMNS: tl.constexpr):
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    is_there = columns < k
    inside = columns % 256
    at = columns // 256 * 32 + (2 * (inside % 128 // 32) + inside // 128) * 4 + inside % 32 // 8
    place = columns % 8 // 2 + columns % 2 * 4
    packed = tl.load(values + row * tl.cdiv(k, 256) * 32 + at, mask=is_there, other=0)
    info = tl.load(groups + columns // 128 * n + row, mask=is_there, other=0)
    numbers = (((packed >> (place * 4)) & 15) - (info & 31)).to(tl.float32) * (info & -32).to(tl.float32, bitcast=True)
    tl.store(out + row * k + columns, numbers.to(out.dtype.element_ty), mask=is_there)


def plain_numbers(matrix: QuantisedMatrix, dtype: torch.dtype) -> torch.Tensor:
    """Return the plain matrix [n, k] in `dtype`, for a product with many rows."""
    out = torch.empty((matrix.n, matrix.k), dtype=dtype, device=matrix.values.device)
    grid = (matrix.n, triton.cdiv(matrix.k, 1024))
    if matrix.kind == WeightKind.INT4:
        _int4_numbers_kernel[grid](matrix.values, matrix.groups, out, matrix.n, matrix.k, COLUMNS=1024, num_warps=4)
    else:
        _numbers_kernel[grid](
            matrix.values.view(STORED[matrix.kind]), _or(matrix.row_scales, out), _or(matrix.block_scales, out), out, matrix.k,
            HAS_ROWS=matrix.row_scales is not None, HAS_BLOCKS=matrix.block_scales is not None, COLUMNS=1024, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def _quantise_rows_kernel(x, out, scales, size, LARGEST: tl.constexpr, IS_INT8: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group, num_groups = tl.program_id(1), tl.num_programs(1)
    columns = tl.arange(0, BLOCK)
    is_there = columns < size
    place = (row * num_groups + group) * size + columns
    numbers = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(numbers), axis=0), 1e-12) / LARGEST
    scaled = numbers / scale
    if IS_INT8:
        scaled = (scaled + 12582912.0) - 12582912.0  # 1.5 x 2^23: rounds to the nearest integer, ties to even
    else:
        scaled = tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST)
    tl.store(out + place, scaled.to(out.dtype.element_ty), mask=is_there)
    tl.store(scales + group * tl.num_programs(0) + row, scale)


def quantise_rows(x: torch.Tensor, kind: WeightKind, group_columns: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x in 8 bits, its scales float32 [M, groups]) of contiguous x [M, k].

    One scale for `group_columns` of a row, 0 for all of it; those of one group lie side by side in memory.
    """
    size = group_columns or x.shape[1]
    num_groups = x.shape[1] // size
    out = torch.empty(x.shape, dtype=STORED[kind], device=x.device)
    scales = torch.empty((num_groups, len(x)), dtype=torch.float32, device=x.device)
    is_int8 = kind == WeightKind.INT8
    _quantise_rows_kernel[(len(x), num_groups)](
        x, out, scales, size, LARGEST=127.0 if is_int8 else 448.0, IS_INT8=is_int8, BLOCK=triton.next_power_of_2(size),
        num_warps=1 if size <= GROUP_COLUMNS else 8,
    )  # fmt: skip
    return out, scales.t()


@triton.jit
def _scale_sums_kernel(sums, scales, row_scales, out, n, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < n
    scaled = tl.load(sums + row * n + columns, mask=is_there).to(tl.float32) * tl.load(scales + row)
    if HAS_ROWS:
        scaled *= tl.load(row_scales + columns, mask=is_there)
    tl.store(out + row * n + columns, scaled.to(out.dtype.element_ty), mask=is_there)


def scale_sums(
    sums: torch.Tensor, scales: torch.Tensor, row_scales: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return int32 sums [M, n] x scales [M] x row_scales [n] in `dtype`."""
    out = torch.empty(sums.shape, dtype=dtype, device=sums.device)
    n = sums.shape[1]
    _scale_sums_kernel[(len(sums), triton.cdiv(n, 2048))](
        sums, scales, _or(row_scales, sums), out, n, HAS_ROWS=row_scales is not None, BLOCK=2048, num_warps=8
    )
    return out
