"""Rotary position embedding in three axes (M-RoPE). Knows nothing of where positions come from, or of layers.

Each frequency of a head turns by the position in time, height or width. A step's rows are mixed from the one-axis table
once, and all layers then rotate row i by row i of that: the kernels are those of a language model. Sources: Qwen2-VL (Wang
et al., 2024) for axes in consecutive sections, Qwen3-VL for interleaved ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs
from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.rotary import RotaryEmbedding

NUM_AXES = 3


class MultimodalRotaryEmbedding(RotaryEmbedding):
    """See the module. Steps whose positions have one axis only are rotated as text is.

    Raises:
        UnsupportedModel: the sections in config.json do not make a head.
    """

    axis_of: torch.Tensor
    """int64 [rotary_dim / 2]: the axis of each frequency."""

    def __init__(self, args: ModelArgs, operations: Operations) -> None:
        super().__init__(args, operations)
        axes = axes_of(args, self.cos_sin_cache.shape[1] // 2)
        self.register_buffer("axis_of", axes.to(torch.get_default_device()), persistent=False)
        self._step_table: torch.Tensor | None = None

    @property
    def step_table(self) -> torch.Tensor:
        """See `RotaryEmbedding.step_table`."""
        return self.cos_sin_cache if self._step_table is None else self._step_table

    def begin_step(self, positions: torch.Tensor) -> torch.Tensor:
        """Take positions [T] or, in three axes, [3, T]; return what layers rotate by, until the next call."""
        self._step_table = None
        positions = positions.clamp(max=self.cos_sin_cache.shape[0] - 1)
        if positions.ndim == 1:
            return positions
        rows = positions[self.axis_of].T
        tables = [half.gather(0, rows) for half in self.cos_sin_cache.chunk(2, -1)]
        self._step_table = torch.cat(tables, -1)
        return torch.arange(positions.shape[1], device=positions.device)


def axes_of(args: ModelArgs, num_frequencies: int) -> torch.Tensor:
    """Return the axis of each frequency, int64 [num_frequencies]; raises `UnsupportedModel` as the class does."""
    parameters = args.rope_scaling.parameters
    sections = parameters.get("mrope_section")
    if not isinstance(sections, list) or len(sections) != NUM_AXES:
        raise UnsupportedModel(f"mrope_section in config.json is {sections!r}, not a list of {NUM_AXES} numbers")
    if parameters.get("mrope_interleaved") or args.model_type.startswith("qwen3_vl"):
        return interleaved_axes(sections, num_frequencies)
    return consecutive_axes(sections, num_frequencies)


def consecutive_axes(sections: Sequence[int], num_frequencies: int) -> torch.Tensor:
    """Return the axes where the first frequencies turn by time, the next ones by height, the last ones by width.

    Raises `UnsupportedModel` unless the sections add up.
    """
    if sum(sections) != num_frequencies:
        raise UnsupportedModel(f"mrope_section {list(sections)} does not sum up to {num_frequencies}")
    return torch.repeat_interleave(torch.arange(NUM_AXES, device="cpu"), torch.tensor(sections, device="cpu"))


def interleaved_axes(sections: Sequence[int], num_frequencies: int) -> torch.Tensor:
    """Return the axes where time, height and width alternate, as far as the sections of the latter two reach."""
    axes = torch.zeros(num_frequencies, dtype=torch.int64, device="cpu")
    for axis in range(1, NUM_AXES):
        axes[axis : sections[axis] * NUM_AXES : NUM_AXES] = axis
    return axes
