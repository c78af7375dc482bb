"""Blocks on their way between a GPU and pinned memory: nothing waits, and none is mixed up with the next."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xllm_framework.kv_cache import BlockMoves
from xllm_runtime.memory.block_payloads import read_payloads, write_payloads
from xllm_runtime.memory.host_blocks import HostBlocks

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


def test_moves_wait_for_nothing_and_keep_their_order():
    generator = np.random.default_rng(0)
    layers = [tuple(torch.randn(64, 16, 4, 64, device="cuda").bfloat16() for _ in "kv") for _ in range(4)]
    tensors = [tensor for layer in layers for tensor in layer]
    expected, slots_of = [tensor.cpu() for tensor in tensors], torch.zeros(8, 40, 16, 4, 64, dtype=torch.bfloat16)
    host = HostBlocks(layers, 40)
    host.move(BlockMoves(to_host=[(0, 0)]))  # memory of this size is pinned once
    torch.cuda.synchronize()
    slots_of[:, 0] = torch.stack([tensor[0] for tensor in expected])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            torch.cuda._sleep(1_000_000)  # what comes is queued behind this
            blocks, slots = generator.permutation(64)[:30].tolist(), generator.permutation(40)[:30].tolist()
            targets, sources = generator.permutation(64)[:12].tolist(), generator.permutation(40)[:12].tolist()
            to_host, to_device = list(zip(blocks, slots, strict=True)), list(zip(sources, targets, strict=True))
            host.move(BlockMoves(to_host=to_host, to_device=to_device))
            for place, tensor in enumerate(expected):
                slots_of[place, slots] = tensor[blocks]
                tensor[targets] = slots_of[place, sources]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for found, tensor in zip(tensors, expected, strict=True):
        assert torch.equal(found.cpu(), tensor)


def test_payloads_come_back_into_other_blocks():
    layers = [tuple(torch.randn(9, 16, 2, 64, device="cuda").bfloat16() for _ in "kv") for _ in range(2)]
    payloads = read_payloads(layers, [3, 1, 8])
    before = [tensor[[3, 1, 8]].clone() for layer in layers for tensor in layer]
    write_payloads(layers, list(zip(payloads, [5, 2, 4], strict=True)))
    for old, tensor in zip(before, (tensor for layer in layers for tensor in layer), strict=True):
        assert torch.equal(tensor[[5, 2, 4]], old)
