"""Numbers of ggml's blocks, worked out by torch on any device: the same bits as the gguf package gives. Knows nothing of files.

Source: ggml-quants.c of llama.cpp, and `gguf.quants`. A function takes blocks uint8 [N, bytes of one] and returns float32
[N, numbers of one].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Blocks = torch.Tensor


def _half(blocks: Blocks, start: int) -> torch.Tensor:
    """Return the 16-bit float that lies at `start`, float32 [N, 1]."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def _parts(octets: torch.Tensor, width: int, bits: int) -> torch.Tensor:
    """Return the parts of `bits` bits, lowest first, of `width` bytes after the others: [N, B] -> [N, B * 8 / bits]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=octets.device).view(1, 1, -1, 1)
    parts = octets.reshape(len(octets), -1, 1, width) >> shifts
    found: torch.Tensor = (parts & (2**bits - 1)).flatten(1)
    return found


def _fifth_bits(octets: torch.Tensor) -> torch.Tensor:
    """Return the bits of four bytes, lowest first, where the fifth of a number stands: [N, 4] -> [N, 32]."""
    return _parts(octets.reshape(-1, 1), 1, 1).view(len(octets), -1) << 4


def _q4_0(blocks: Blocks) -> torch.Tensor:
    return _half(blocks, 0) * (_parts(blocks[:, 2:], 16, 4).to(torch.int8) - 8).float()


def _q4_1(blocks: Blocks) -> torch.Tensor:
    return _half(blocks, 0) * _parts(blocks[:, 4:], 16, 4).float() + _half(blocks, 2)


def _q5_0(blocks: Blocks) -> torch.Tensor:
    numbers = _parts(blocks[:, 6:], 16, 4) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (numbers.to(torch.int8) - 16).float()


def _q5_1(blocks: Blocks) -> torch.Tensor:
    numbers = _parts(blocks[:, 8:], 16, 4) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * numbers.float() + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _k_scales(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and minima of the eight groups of 32 numbers, float32 [N, 8, 1] each: 6 bits each in bytes 4 to 16."""
    low, low_minima, both = blocks[:, 4:16].view(len(blocks), 3, 4).unbind(1)
    scales = torch.cat((low & 0x3F, (both & 0x0F) | ((low >> 2) & 0x30)), -1)
    minima = torch.cat((low_minima & 0x3F, (both >> 4) | ((low_minima >> 2) & 0x30)), -1)
    scaled = _half(blocks, 0) * scales.float(), _half(blocks, 2) * minima.float()
    return scaled[0].unsqueeze(-1), scaled[1].unsqueeze(-1)


def _q4_k(blocks: Blocks) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    numbers = _parts(blocks[:, 16:], 32, 4).view(len(blocks), 8, 32).float()
    return (scales * numbers - minima).flatten(1)


def _q5_k(blocks: Blocks) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    numbers = _parts(blocks[:, 48:], 32, 4) | (_parts(blocks[:, 16:48], 32, 1) << 4)
    return (scales * numbers.view(len(blocks), 8, 32).float() - minima).flatten(1)


def _q6_k(blocks: Blocks) -> torch.Tensor:
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    numbers = _parts(blocks[:, :128], 64, 4) | (_parts(blocks[:, 128:192], 32, 2) << 4)
    return (scales.unsqueeze(-1) * (numbers.to(torch.int8) - 32).view(len(blocks), 16, 16).float()).flatten(1)


NUMBERS: dict[str, tuple[int, Callable[[Blocks], torch.Tensor]]] = {
    "F32": (4, lambda blocks: blocks.view(torch.float32)),
    "F16": (2, lambda blocks: blocks.view(torch.float16).float()),
    "BF16": (2, lambda blocks: blocks.view(torch.bfloat16).float()),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
"""Type of ggml -> (bytes of a block, its numbers)."""
