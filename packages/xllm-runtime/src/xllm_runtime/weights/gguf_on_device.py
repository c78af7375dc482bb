"""The weights of a GGUF file, sent to a GPU as they are stored and made into numbers there. Knows nothing of copies on disk.

Faster than to read numbers that were made before, of which there are four times as many bytes and more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from xllm_runtime.platform.uploads import upload
from xllm_runtime.weights.gguf_blocks import NUMBERS
from xllm_runtime.weights.raw_tensor import RawTensor

CHUNK_BYTES = 1 << 23
"""Stored bytes that are made into numbers at a time."""


def serves(tensors: Sequence[RawTensor], device: torch.device) -> bool:
    """Whether `weights_on_device` can make all `tensors`, and pays."""
    return device.type == "cuda" and all(tensor.kind in NUMBERS for tensor in tensors)


def weights_on_device(
    tensors: Sequence[RawTensor], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor in `dtype` on `device`), each rounded once."""
    for tensor in tensors:
        yield tensor.name, _numbers(tensor, dtype, device)


def _numbers(tensor: RawTensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    block_bytes, numbers = NUMBERS[tensor.kind]
    blocks = tensor.raw.reshape(-1, block_bytes)
    step = max(1, CHUNK_BYTES // block_bytes)
    made = []
    for start in range(0, len(blocks), step):
        [chunk] = upload([blocks[start : start + step]], device)
        made.append(numbers(chunk).to(dtype).flatten())
    rows = torch.cat(made).view(tensor.shape)
    if not tensor.permuted_heads:
        return rows
    return rows.view(tensor.permuted_heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
