"""How a checkpoint's tensors become parameters, with as few copies as possible. Knows nothing of files or models.

A parameter is filled by one or several tensors stacked along rows (q, k and v in one matrix). Tensors that already have
the parameter's dtype and device are adopted, not copied: a mapped file then *is* the weights. Stacked parts are adopted
too when they lie one after the other in memory, as converted copies of GGUF files lay them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from xllm_framework.errors import ModelLoadError


class WeightSlot(Protocol):
    """What takes the tensors of a checkpoint for one parameter."""

    def lacks(self, part: int) -> bool:
        """Whether part `part` waits for a tensor."""

    def take(self, part: int, name: str, tensor: torch.Tensor) -> None:
        """Fill part `part` with `tensor`, called `name` in the checkpoint; raises `ModelLoadError` for a wrong shape."""


class ParameterSlot:
    """One parameter, `module.<attribute>`, waiting for `len(rows)` tensors of rows[i] rows each."""

    def __init__(self, module: nn.Module, attribute: str, rows: Sequence[int]) -> None:
        self._parameter: nn.Parameter = getattr(module, attribute)
        self._rows = list(rows)
        self._waiting: dict[int, torch.Tensor] = {}
        self._taken: set[int] = set()

    def lacks(self, part: int) -> bool:
        """See `WeightSlot.lacks`."""
        return part not in self._taken

    def take(self, part: int, name: str, tensor: torch.Tensor) -> None:
        """Fill part `part` with `tensor`, called `name` in the checkpoint; raises `ModelLoadError` for a wrong shape."""
        expected = [self._rows[part], *self._parameter.shape[1:]]
        if list(tensor.shape) != expected:
            raise ModelLoadError(
                f"tensor {name!r} has shape {list(tensor.shape)}, but the model's configuration asks for {expected}"
            )
        parameter = self._parameter
        if tensor.dtype == parameter.dtype and tensor.device == parameter.device and tensor.is_contiguous():
            self._waiting[part] = tensor
        else:
            self._copy(part, tensor)
        self._taken.add(part)
        if len(self._taken) == len(self._rows):
            self._settle()

    def _settle(self) -> None:
        parts = [self._waiting[part] for part in sorted(self._waiting)]
        if len(parts) == len(self._rows) and are_adjacent(parts):
            self._parameter.data = parts[0].as_strided(self._parameter.shape, self._parameter.stride())
        else:
            for part, tensor in self._waiting.items():
                self._copy(part, tensor)
        self._waiting.clear()

    def _copy(self, part: int, tensor: torch.Tensor) -> None:
        start = sum(self._rows[:part])
        self._parameter.data[start : start + self._rows[part]].copy_(tensor)


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """Where one tensor of a checkpoint goes: part `part` of `slot`."""

    slot: WeightSlot
    part: int = 0


WeightTargets = Iterable[tuple[str, WeightTarget]]
"""(Hugging Face name, target) of every tensor that a module wants."""


def whole_parameter(name: str, module: nn.Module, attribute: str) -> tuple[str, WeightTarget]:
    """Return the target of a parameter that the checkpoint stores as one tensor called `name`."""
    return name, WeightTarget(ParameterSlot(module, attribute, [len(getattr(module, attribute))]))


def are_adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether contiguous tensors of one storage lie one directly after the other."""
    storage = tensors[0].untyped_storage().data_ptr()
    end = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.data_ptr() != end:
            return False
        end += tensor.nbytes
    return True


def fill_targets(
    targets: WeightTargets, weights: Iterable[tuple[str, torch.Tensor]], is_ignored: Callable[[str], bool]
) -> None:
    """Give every tensor of `weights` to its target, one at a time.

    Raises `ModelLoadError` for a tensor that no target wants and `is_ignored` does not know (computing without it would
    be wrong without notice), for one that comes twice, and for targets that got none although their slot lacks that part.
    """
    wanted = dict(targets)
    filled: set[str] = set()
    for name, tensor in weights:
        if name in filled:
            raise ModelLoadError(f"tensor {name!r} is in the checkpoint twice")
        if name in wanted:
            target = wanted[name]
            target.slot.take(target.part, name, tensor)
            filled.add(name)
        elif not is_ignored(name):
            raise ModelLoadError(
                f"tensor {name!r} of the checkpoint is unknown to this implementation; try --model-impl transformers"
            )
    missing = [name for name, target in wanted.items() if name not in filled and target.slot.lacks(target.part)]
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelLoadError(f"the checkpoint has no tensor {missing[0]!r}{others}")
