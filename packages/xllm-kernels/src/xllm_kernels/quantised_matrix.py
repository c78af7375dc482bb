"""Quantised matrices as the GPU kernels read them, made and undone with torch on any device. Imports torch; knows nothing of checkpoints.

8-bit numbers lie in rows as they are. 4-bit ones are unsigned with a zero point a group of 128 columns, eight to a word, in the order
in which a warp of the CUDA kernel takes them: of 256 columns, 16-byte piece 2 t + h holds columns 128 h + 32 t and the 31 after them,
its word w eight of these; place i of a word (4 bits each, the lowest first) holds the word's column 2 i, or 2 (i - 4) + 1 from place 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

GROUP_COLUMNS = 128
"""Columns that share a scale and a zero point (4 bits), and side of the square blocks that share a scale (8 bits)."""
BOX_COLUMNS = 256
"""4-bit matrices are stored with their columns rounded up to this."""
ZERO_POINT_BITS = 5
"""Low bits of a group's float32 scale that hold its zero point instead."""


class WeightKind(IntEnum):
    """How one number is stored."""

    FLOAT8 = 0
    """e4m3."""
    INT8 = 1
    INT4 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedMatrix:
    """A matrix [n, k]: value x row scale x block scale, or (value - zero point) x scale for 4 bits; tensors on one device."""

    kind: WeightKind
    n: int
    k: int
    values: torch.Tensor
    """int32 words: [n, k / 4], or [n, k' / 8] for 4 bits, k' being k rounded up to 256."""
    row_scales: torch.Tensor | None = None
    """float32 [n]; None is 1. 8 bits only, as are the next."""
    block_scales: torch.Tensor | None = None
    """float32 [ceil(n / 128), ceil(k / 128)]; None is 1."""
    groups: torch.Tensor | None = None
    """4 bits: int32 [k' / 128, n], bits of a float32 scale whose 5 low ones are the zero point."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.values, self.row_scales, self.block_scales, self.groups)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def from_8_bits(
    values: torch.Tensor, row_scales: torch.Tensor | None = None, block_scales: torch.Tensor | None = None
) -> QuantisedMatrix:
    """Return the matrix of `values` [n, k], float8_e4m3fn or int8, with k a multiple of 4; scales as `QuantisedMatrix` has them.

    Raises ValueError for another type.
    """
    kinds = {torch.float8_e4m3fn: WeightKind.FLOAT8, torch.int8: WeightKind.INT8}
    if values.dtype not in kinds:
        raise ValueError(f"values must be float8_e4m3fn or int8, not {values.dtype}")
    return QuantisedMatrix(
        kind=kinds[values.dtype],
        n=values.shape[0],
        k=values.shape[1],
        values=values.contiguous().view(torch.int32),
        row_scales=None if row_scales is None else row_scales.float().contiguous(),
        block_scales=None if block_scales is None else block_scales.float().contiguous(),
    )


def from_4_bits(values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> QuantisedMatrix:
    """Return the matrix of `values` uint8 [n, k] in 0 to 15, with `scales` and integer `zeros` (0 to 16), each [n, k / 128].

    float32 scales lose their 5 lowest bits; those of 16-bit types stay as they are. Raises ValueError for sizes that do not fit.
    """
    n, k = values.shape
    if k % GROUP_COLUMNS or scales.shape != (n, k // GROUP_COLUMNS) or zeros.shape != scales.shape:
        raise ValueError(
            f"values {[n, k]} ask for scales and zeros [{n}, {k / GROUP_COLUMNS}], not {list(scales.shape)}"
        )
    padding = -k % BOX_COLUMNS
    wide = torch.nn.functional.pad(values.int(), (0, padding))
    pairs = wide.view(n, -1, 2, 4, 4, 4, 2)  # [n, box, h, t, w, i, low or high half]
    places = pairs.permute(0, 1, 3, 2, 4, 6, 5).reshape(n, -1, 8)  # [n, word, place]
    shifts = torch.arange(0, 32, 4, device=values.device, dtype=torch.int32)
    words = (places << shifts).sum(-1, dtype=torch.int32)
    mask = (1 << ZERO_POINT_BITS) - 1
    bits = (scales.float().contiguous().view(torch.int32) & ~mask) | (zeros.int() & mask)
    groups = torch.nn.functional.pad(bits, (0, padding // GROUP_COLUMNS)).t().contiguous()
    return QuantisedMatrix(kind=WeightKind.INT4, n=n, k=k, values=words.contiguous(), groups=groups)


def stack(parts: Sequence[QuantisedMatrix]) -> QuantisedMatrix:
    """Return `parts` of one kind and width below each other. Raises ValueError where they differ, or blocks would not meet."""
    first = parts[0]
    if any(part.kind != first.kind or part.k != first.k for part in parts):
        raise ValueError("matrices of different kinds or widths cannot be stacked")
    if len(parts) == 1:
        return first
    has_blocks = {part.block_scales is not None for part in parts}
    if len(has_blocks) > 1 or (has_blocks == {True} and any(part.n % GROUP_COLUMNS for part in parts[:-1])):
        raise ValueError(
            f"blocks of {GROUP_COLUMNS} rows do not meet where matrices of {[p.n for p in parts]} rows are stacked"
        )
    has_rows = any(part.row_scales is not None for part in parts)
    rows = [torch.ones(p.n, device=p.values.device) if p.row_scales is None else p.row_scales for p in parts]
    blocks = [part.block_scales for part in parts if part.block_scales is not None]
    groups = [part.groups for part in parts if part.groups is not None]
    return replace(
        first,
        n=sum(part.n for part in parts),
        values=torch.cat([part.values for part in parts]),
        row_scales=torch.cat(rows) if has_rows else None,
        block_scales=torch.cat(blocks) if blocks else None,
        groups=torch.cat(groups, 1) if groups else None,
    )


def numbers(matrix: QuantisedMatrix, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the plain matrix [n, k], computed in float32 (float64 where `dtype` is that) and rounded once."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if matrix.kind == WeightKind.INT4:
        return _int4_numbers(matrix, wide).to(dtype)
    stored = torch.float8_e4m3fn if matrix.kind == WeightKind.FLOAT8 else torch.int8
    result = matrix.values.view(stored).to(wide)
    if matrix.block_scales is not None:
        grid = matrix.block_scales.to(wide).repeat_interleave(GROUP_COLUMNS, 0)[: matrix.n]
        result *= grid.repeat_interleave(GROUP_COLUMNS, 1)[:, : matrix.k]
    if matrix.row_scales is not None:
        result *= matrix.row_scales.to(wide).unsqueeze(1)
    return result.to(dtype)


def _int4_numbers(matrix: QuantisedMatrix, wide: torch.dtype) -> torch.Tensor:
    if matrix.groups is None:
        raise ValueError("a 4-bit matrix needs groups")
    values, scales, zeros = unpack_4_bits(matrix)
    return ((values.int() - zeros.repeat_interleave(GROUP_COLUMNS, 1)).to(wide)) * scales.to(wide).repeat_interleave(
        GROUP_COLUMNS, 1
    )


def unpack_4_bits(matrix: QuantisedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (values uint8 [n, k], scales float32 [n, k / 128], zero points int32 [n, k / 128]); undoes `from_4_bits`."""
    if matrix.groups is None:
        raise ValueError("a 4-bit matrix needs groups")
    shifts = torch.arange(0, 32, 4, device=matrix.values.device, dtype=torch.int32)
    places = (matrix.values.unsqueeze(-1) >> shifts) & 15
    pairs = places.view(matrix.n, -1, 4, 2, 4, 2, 4)  # [n, box, t, h, w, low or high half, i]
    values = pairs.permute(0, 1, 3, 2, 4, 6, 5).reshape(matrix.n, -1)[:, : matrix.k]
    mask = (1 << ZERO_POINT_BITS) - 1
    groups = matrix.groups.t()[:, : matrix.k // GROUP_COLUMNS].contiguous()
    return values.to(torch.uint8), (groups & ~mask).view(torch.float32), groups & mask
