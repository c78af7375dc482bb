"""Logits from hidden states, as a transformers model computes them. Knows nothing of how the hidden states came about.

What happens after the last layer differs between models (scaling, soft caps, biases), and is written in each one's
forward. That forward is run here, with a stand-in for the layers that hands out the given hidden states.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from xllm_framework.errors import UnsupportedModel


class LogitsHead:
    """The part of a causal model behind its layers; shares the model's parameters."""

    def __init__(self, model: Any) -> None:
        layers = model.base_model
        names = [name for name, module in model.named_children() if module is layers]
        if not names:
            raise UnsupportedModel(f"{type(model).__name__} does not keep its layers apart from its head")
        self._stand_in = _GivenHidden()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, names[0]: self._stand_in}

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> float32 [R, vocab_size]."""
        self._stand_in.hidden = hidden[None]
        try:
            logits: torch.Tensor = self._head(input_ids=torch.zeros_like(hidden[None, :, 0], dtype=torch.long))[0]
        finally:
            self._stand_in.hidden = None
        return logits[0].float()


class _GivenHidden(nn.Module):
    hidden: torch.Tensor | None = None

    @property
    def decoder(self) -> _GivenHidden:
        """Some models (OPT) call their layers' decoder directly."""
        return self

    def forward(self, *_args: Any, **_options: Any) -> _LayersOutput:
        return _LayersOutput(self.hidden)


class _LayersOutput:
    """Looks like what the layers of any model return: `last_hidden_state` or [0], and nothing else."""

    def __init__(self, hidden: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]
