"""Who multiplies by quantised matrices, behind one protocol: kernels of xllm-kernels for few rows, libraries for many, torch everywhere.

Knows nothing of checkpoints, or of which layer a matrix belongs to.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from xllm_kernels.quantised_matrix import GROUP_COLUMNS, QuantisedMatrix, WeightKind, numbers
from xllm_runtime.layers.products import plain_product

KERNEL_DTYPES = (torch.bfloat16, torch.float16)
ROWS_STEP = 16
MAX_COLUMNS = 32768


class QuantisedProducts(Protocol):
    """Computes x W^T + b for quantised W."""

    def multiply(self, x: torch.Tensor, matrix: QuantisedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, k] -> [T, n] in x's dtype."""


class TorchProducts:
    """`QuantisedProducts` with torch alone: the matrix is made plain for each product."""

    def multiply(self, x: torch.Tensor, matrix: QuantisedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        """See `QuantisedProducts.multiply`."""
        return plain_product(x, numbers(matrix, x.dtype), bias)


class CUDAProducts:
    """`QuantisedProducts` on a GPU; only constructed where `explain_cuda_products` is empty.

    Few rows stream the weights through our kernel and stay as they are. Many rows multiply in 8 bits where the checkpoint means its
    inputs to be quantised and the library can, else by the matrix made plain.
    """

    def __init__(self, device: torch.device, *, quantises_input: bool) -> None:
        from xllm_kernels import explain
        from xllm_kernels.triton import quantised_product as portable

        self._portable = portable
        self._quantises_input = quantises_input and torch.cuda.get_device_capability(device) >= EIGHT_BIT_CAPABILITY
        self._can_stream = not explain("quantised_stream", str(device))
        self._device = device

    def multiply(self, x: torch.Tensor, matrix: QuantisedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        """See `QuantisedProducts.multiply`."""
        x = x.contiguous()
        if self._can_stream and len(x) <= STREAMED_ROWS:
            return self._stream(x, matrix, bias)
        if not self._can_stream and len(x) <= PORTABLE_ROWS:
            return self._portable.quantised_product(x, matrix, bias)
        product = self._multiply_8_bits(x, matrix) if self._quantises_input and len(x) > MIN_8_BIT_ROWS else None
        if product is None:
            return plain_product(x, self._portable.plain_numbers(matrix, x.dtype), bias)
        return product if bias is None else product + bias

    def _stream(self, x: torch.Tensor, matrix: QuantisedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        from xllm_kernels.cuda.decode import shared_workspace
        from xllm_kernels.cuda.quantised import quantised_stream

        out = torch.empty((len(x), matrix.n), dtype=x.dtype, device=x.device)
        quantised_stream(x, matrix, shared_workspace(self._device), out=out, bias=bias)
        return out

    def _multiply_8_bits(self, x: torch.Tensor, matrix: QuantisedMatrix) -> torch.Tensor | None:
        """[T, k] -> [T, n], x quantised token by token; None where no library multiplies so."""
        portable, row_scales, num_rows = self._portable, matrix.row_scales, len(x)
        if matrix.kind == WeightKind.INT4:
            return None
        stored = matrix.values.view(portable.STORED[matrix.kind]).t()
        if matrix.kind == WeightKind.INT8:
            values, scales = portable.quantise_rows(x, matrix.kind)
            sums: torch.Tensor = torch._int_mm(values, stored)
            scaled: torch.Tensor = portable.scale_sums(sums, scales, row_scales, x.dtype)
            return scaled
        if matrix.block_scales is not None:
            if matrix.n % GROUP_COLUMNS or matrix.k % (4 * GROUP_COLUMNS):
                return None
            x = F.pad(x, (0, 0, 0, -len(x) % ROWS_OF_BLOCK_SCALES))
            values, scales = portable.quantise_rows(x, matrix.kind, GROUP_COLUMNS)
            weight_scales = matrix.block_scales.t()
        else:
            values, scales = portable.quantise_rows(x, matrix.kind)
            weight_scales = (scales.new_ones(matrix.n) if row_scales is None else row_scales).unsqueeze(0)
        product: torch.Tensor = torch._scaled_mm(
            values, stored, scale_a=scales, scale_b=weight_scales, out_dtype=torch.bfloat16
        )
        return product[:num_rows].to(x.dtype)


STREAMED_ROWS = 32
"""Rows up to which the CUDA kernel serves."""
PORTABLE_ROWS = 64
"""Rows up to which the Triton kernel is faster than making the matrix plain."""
MIN_8_BIT_ROWS = 16
"""`torch._int_mm` wants more."""
ROWS_OF_BLOCK_SCALES = 4
"""cuBLASLt takes scales of blocks for a multiple of so many rows."""
EIGHT_BIT_CAPABILITY = (9, 0)


def select_products(device: torch.device, dtype: torch.dtype, *, quantises_input: bool) -> QuantisedProducts:
    """Return the kernels where they serve, else torch."""
    if explain_cuda_products(device, dtype):
        return TorchProducts()
    return CUDAProducts(device, quantises_input=quantises_input)


def explain_cuda_products(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Return every reason why `CUDAProducts` cannot serve; empty where it can."""
    if device.type != "cuda":
        return [f"the kernels run on a CUDA GPU, not on {device}"]
    from xllm_kernels.triton import why_no_triton

    reason = why_no_triton()
    reasons = [] if reason is None else [reason]
    if dtype not in KERNEL_DTYPES:
        reasons.append("the kernels compute in bfloat16 and float16 only")
    return reasons


def explain_sizes(rows: list[int], in_features: int, *, has_blocks: bool) -> list[str]:
    """Return why matrices of `rows`, one below another, cannot be one; empty where they can."""
    reasons = []
    if sum(rows) % (2 * ROWS_STEP) or in_features > MAX_COLUMNS:
        reasons.append(f"{sum(rows)} rows of {in_features} columns do not suit the kernels")
    if has_blocks and any(count % GROUP_COLUMNS for count in rows[:-1]):
        reasons.append(f"blocks of scales do not meet where {rows} rows are stacked")
    return reasons
