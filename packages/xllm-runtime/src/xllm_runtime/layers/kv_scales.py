"""Where a checkpoint's scales of an 8-bit KV cache go. Knows nothing of the cache."""

from __future__ import annotations

from typing import Protocol

import torch

from xllm_framework.errors import ModelLoadError
from xllm_runtime.layers.parameter import WeightTarget, WeightTargets

NAMES = (("k_scale", "k_proj.k_scale", "attn.k_scale"), ("v_scale", "v_proj.v_scale", "attn.v_scale"))
"""Under the prefix of a layer's attention, as different tools write them: keys', values'."""


class HasKVScales(Protocol):
    """An attention layer over a cache of 8 bits."""

    @property
    def kv_scales(self) -> tuple[float, float]:
        """What keys and values in the cache are multiplied by."""

    def set_kv_scales(self, scales: tuple[float, float]) -> None:
        """Use `scales` from now on."""


class KVScaleSlot:
    """`WeightSlot` of one layer's two scales, part 0 the keys' and part 1 the values'; both may stay 1."""

    def __init__(self, attention: HasKVScales) -> None:
        self._attention = attention

    def lacks(self, part: int) -> bool:
        """See `WeightSlot.lacks`: nothing is needed."""
        return False

    def take(self, part: int, name: str, tensor: torch.Tensor) -> None:
        """See `WeightSlot.take`."""
        scale = float(tensor.flatten()[0]) if tensor.numel() == 1 else 0.0
        if scale <= 0:
            raise ModelLoadError(f"tensor {name!r} is not one positive scale")
        scales = list(self._attention.kv_scales)
        scales[part] = scale
        self._attention.set_kv_scales((scales[0], scales[1]))


def kv_scale_targets(prefix: str, attention: HasKVScales) -> WeightTargets:
    """Yield the scales under `prefix`."""
    slot = KVScaleSlot(attention)
    for part, names in enumerate(NAMES):
        for name in names:
            yield f"{prefix}.{name}", WeightTarget(slot, part)
