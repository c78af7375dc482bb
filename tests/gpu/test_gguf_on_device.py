"""Numbers of a GGUF file made on a GPU: the same bits as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xllm_runtime.weights import gguf_on_device
from xllm_runtime.weights.gguf_blocks import NUMBERS
from xllm_runtime.weights.gguf_on_device import weights_on_device
from xllm_runtime.weights.raw_tensor import RawTensor

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", NUMBERS)
def test_bits_are_those_of_the_cpu(monkeypatch, kind):
    monkeypatch.setattr(gguf_on_device, "CHUNK_BYTES", 5000)
    block_bytes, _ = NUMBERS[kind]
    raw = np.random.default_rng(0).integers(0, 60, 768 * block_bytes).astype(np.uint8)  # scales are small and finite
    shape = (12, 64 * len(NUMBERS[kind][1](torch.from_numpy(raw[:block_bytes].reshape(1, -1)))[0]))
    tensors = [RawTensor("plain", kind, shape, raw), RawTensor("permuted", kind, shape, raw, 3)]
    for dtype in (torch.bfloat16, torch.float32):
        on_cpu = dict(weights_on_device(tensors, dtype, torch.device("cpu")))
        on_gpu = dict(weights_on_device(tensors, dtype, torch.device("cuda")))
        for name, expected in on_cpu.items():
            assert on_gpu[name].device.type == "cuda"
            assert torch.equal(on_gpu[name].cpu(), expected)
