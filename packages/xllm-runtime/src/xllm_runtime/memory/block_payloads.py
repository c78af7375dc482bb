"""All KV of a block as bytes, and back. Knows nothing of where payloads are kept.

A payload is the block of each tensor, K then V, layer after layer, as it lies in memory.
"""

from __future__ import annotations

import torch

from xllm_runtime.memory.host_blocks import KVTensors


def payload_bytes(caches: KVTensors) -> int:
    """Return the bytes of a payload."""
    return sum(tensor[0].numel() * tensor.element_size() for layer in caches for tensor in layer)


def read_payloads(caches: KVTensors, blocks: list[int]) -> list[bytes]:
    """Return the payloads of `blocks`; (K, V) of each layer, each [num_blocks, ...]."""
    indices = torch.tensor(blocks, dtype=torch.int64)
    rows = [
        tensor.index_select(0, indices.to(tensor.device)).flatten(1).view(torch.uint8)
        for layer in caches
        for tensor in layer
    ]
    joined = torch.cat(rows, dim=1).cpu().numpy()
    return [row.tobytes() for row in joined]


def write_payloads(caches: KVTensors, pairs: list[tuple[bytes, int]]) -> None:
    """Put payloads into blocks, (payload, block) of `pairs`."""
    if not pairs:
        return
    indices = torch.tensor([block for _, block in pairs], dtype=torch.int64)
    rows = torch.stack([torch.frombuffer(bytearray(payload), dtype=torch.uint8) for payload, _ in pairs])
    start = 0
    for tensor in (tensor for layer in caches for tensor in layer):
        end = start + tensor[0].numel() * tensor.element_size()
        part = rows[:, start:end].contiguous().view(tensor.dtype).view(len(pairs), *tensor.shape[1:])
        tensor.index_copy_(0, indices.to(tensor.device), part.to(tensor.device))
        start = end
