"""Random weights of the right shapes, for benchmarks without a checkpoint. Knows nothing of models."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn

DEVIATION = 0.02
SEED = 0


@runtime_checkable
class MakesDummyWeights(Protocol):
    """A module that has no parameters yet, or none that numbers can be drawn for, and makes random ones itself."""

    def make_dummy_weights(self) -> None:
        """Take random weights; always the same."""


def fill_dummy_weights(module: nn.Module) -> None:
    """Fill matrices with small normal numbers, biases with 0 and every other vector (norms) with 1; always the same."""
    if isinstance(module, MakesDummyWeights):
        module.make_dummy_weights()
        return
    generators: dict[torch.device, torch.Generator] = {}
    for part in module.modules():
        if isinstance(part, MakesDummyWeights):
            part.make_dummy_weights()
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 and parameter.numel():
            device = parameter.device
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(SEED))
            parameter.data.normal_(0, DEVIATION, generator=generator)
        else:
            parameter.data.fill_(0 if name.endswith("bias") else 1)
