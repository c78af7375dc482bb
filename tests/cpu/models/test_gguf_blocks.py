"""Numbers of ggml's blocks made by torch: the bits that the gguf package gives, and whole tensors in their order."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from xllm_framework.model.ggml_types import GGML_TYPES
from xllm_runtime.weights import gguf_on_device
from xllm_runtime.weights.gguf_blocks import NUMBERS
from xllm_runtime.weights.gguf_on_device import serves, weights_on_device
from xllm_runtime.weights.raw_tensor import RawTensor

BLOCKS = {kind.name: kind for kind in GGML_TYPES.values()}
HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1, "Q4_K": 2, "Q5_K": 2}
"""16-bit floats at a block's begin."""


def random_blocks(kind: str, count: int) -> np.ndarray:
    """Random bytes whose scales are finite."""
    generator = np.random.default_rng(0)
    block_bytes = BLOCKS[kind].block_bytes
    if kind in ("F32", "F16", "BF16"):
        values = torch.from_numpy(generator.normal(0, 2, (count, 1)).astype(np.float32))
        typed = values.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind])
        return typed.view(torch.uint8).numpy()
    blocks = generator.integers(0, 256, (count, block_bytes)).astype(np.uint8)
    scales = generator.normal(0, 0.1, (count, 2)).astype(np.float16).view(np.uint8)
    if kind == "Q6_K":
        blocks[:, 208:] = scales[:, :2]
    else:
        blocks[:, : 2 * HALVES[kind]] = scales[:, : 2 * HALVES[kind]]
    return blocks


@pytest.mark.parametrize("kind", NUMBERS)
def test_bits_are_those_of_the_gguf_package(kind):
    blocks = random_blocks(kind, 300)
    block_bytes, numbers = NUMBERS[kind]
    assert block_bytes == BLOCKS[kind].block_bytes
    expected = dequantize(blocks, gguf.GGMLQuantizationType[kind])
    found = numbers(torch.from_numpy(blocks)).numpy()
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), expected.reshape(found.shape).view(np.uint32))


@pytest.mark.parametrize("heads", [0, 3])
def test_tensors_are_made_in_pieces_and_put_in_order(monkeypatch, heads):
    monkeypatch.setattr(gguf_on_device, "CHUNK_BYTES", 100)
    blocks = random_blocks("Q4_1", 12 * 2)
    tensor = RawTensor("x", "Q4_1", (12, 64), blocks.reshape(-1), heads)
    [(name, found)] = weights_on_device([tensor], torch.bfloat16, torch.device("cpu"))
    plain = torch.from_numpy(dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)).to(torch.bfloat16).view(12, 64)
    order = np.arange(12).reshape(3, -1, 2).swapaxes(1, 2).reshape(-1) if heads else np.arange(12)
    assert name == "x"
    assert torch.equal(found, plain[torch.from_numpy(order)])


def test_other_types_and_devices_are_left_to_the_cpu():
    tensor = RawTensor("x", "Q4_1", (1, 32), np.zeros(20, np.uint8))
    other = RawTensor("y", "IQ2_XS", (1, 256), np.zeros(74, np.uint8))
    assert serves([tensor], torch.device("cuda"))
    assert not serves([tensor, other], torch.device("cuda"))
    assert not serves([tensor], torch.device("cpu"))
