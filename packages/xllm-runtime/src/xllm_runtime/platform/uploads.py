"""Arrays on their way to a device: several in one copy that the host does not wait for. Knows nothing of what they mean.

A copy from pageable memory waits for all work that was started before it, and the host waits with it. So arrays are packed into pinned
memory first, which torch keeps, and hands out again once the copies from it have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16
"""Bytes; kernels load as many at once."""
LEAST_BYTES = 1 << 16
"""Of pinned memory taken, so that few sizes of it are needed: the host pins new memory more slowly than it starts a step."""

Arrays = Sequence[npt.NDArray[np.generic]]

_DTYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def upload(arrays: Arrays, device: torch.device) -> list[torch.Tensor]:
    """Return `arrays`, of one dimension or more, as tensors on `device` with their shapes and types.

    On a CPU they are the arrays' own memory. On a GPU they can be used by what is started after this on the current stream, and the
    arrays may change as soon as this returns.
    """
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    num_bytes = sum(map(packed_bytes, arrays))
    host = torch.empty(max(num_bytes, LEAST_BYTES), dtype=torch.uint8, device="cpu", pin_memory=True)
    pack(arrays, host.numpy())
    return unpack(host[:num_bytes].to(device, non_blocking=True), arrays)


def packed_bytes(array: npt.NDArray[np.generic]) -> int:
    """Return the bytes that `array` takes among others."""
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def pack(arrays: Arrays, into: npt.NDArray[np.uint8]) -> None:
    """Copy `arrays`, one after the other, into bytes that are at least `packed_bytes` of all."""
    start = 0
    for array in arrays:
        into[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        start += packed_bytes(array)


def unpack(packed: torch.Tensor, arrays: Arrays) -> list[torch.Tensor]:
    """Return the parts of `packed`, uint8, that `pack` filled with `arrays`."""
    parts, start = [], 0
    for array in arrays:
        parts.append(packed[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape))
        start += packed_bytes(array)
    return parts
