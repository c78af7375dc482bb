"""Attention within segments of one tensor, as vision towers have it: nothing is causal, nothing is cached.

One protocol, its backends by name, and the choice between them. Knows nothing of pictures, or of what a row stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import ClassVar, Protocol, cast

import torch

from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_runtime.attention.backend import AttentionSpec

logger = logging.getLogger(__name__)

SEGMENT_BACKENDS = {
    "hopper": "xllm_runtime.attention.segments_cuda:HopperSegments",
    "sdpa": "xllm_runtime.attention.segments_sdpa:SDPASegments",
}
"""Fastest first; the last serves everything."""


@dataclass(frozen=True, slots=True)
class Segments:
    """P rows cut into S segments that follow one another; each row sees the rows of its own segment."""

    lengths: tuple[int, ...]
    """Rows of each segment, P in all."""
    starts: torch.Tensor
    """int32 [S + 1]: segment s is rows starts[s] to starts[s + 1]."""
    sizes: torch.Tensor
    """int32 [S], `lengths` on the device."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Return the segments of these lengths."""
        sizes = torch.tensor(lengths, dtype=torch.int32)
        starts = torch.cat((sizes.new_zeros(1), sizes.cumsum(0, dtype=torch.int32)))
        return cls(tuple(lengths), starts.to(device), sizes.to(device))

    @property
    def longest(self) -> int:
        """Rows of the longest segment."""
        return max(self.lengths, default=0)


class SegmentAttention(Protocol):
    """What a backend offers; one object serves any number of layers like its `AttentionSpec`."""

    name: ClassVar[str]

    def __init__(self, spec: AttentionSpec) -> None:
        """Prepare for layers like `spec`; only called when `explain(spec)` is empty."""

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """Return every reason why this backend cannot serve `spec`; empty when it can. Never raises."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Attend every row to its segment: [P, num_heads, head_dim] each, rows may be strided -> the same, contiguous."""


def select_segment_attention(spec: AttentionSpec, name: str = "auto") -> SegmentAttention:
    """Return a backend for layers like `spec`: the named one, or with "auto" the first that fits; a GPU is told why not a faster one.

    Raises `InvalidConfig` for an unknown name and `UnsupportedModel`, with every reason, when none fits.
    """
    if name != "auto" and name not in SEGMENT_BACKENDS:
        raise InvalidConfig(f"segment attention {name!r} is unknown; choose auto, {', '.join(SEGMENT_BACKENDS)}")
    reasons: list[str] = []
    for candidate in SEGMENT_BACKENDS if name == "auto" else (name,):
        backend = _load(SEGMENT_BACKENDS[candidate])
        found = backend.explain(spec)
        if not found:
            if reasons and spec.device.type == "cuda":
                warn_once(candidate, "; ".join(reasons))
            return backend(spec)
        reasons += [f"{candidate}: {reason}" for reason in found]
    raise UnsupportedModel(f"no segment attention fits: {'; '.join(reasons)}")


@cache
def warn_once(chosen: str, reasons: str) -> None:
    """Say why a vision tower does not attend the fastest way."""
    logger.warning("Vision towers attend with %s, which is slower (%s).", chosen, reasons)


def _load(path: str) -> type[SegmentAttention]:
    module, _, attribute = path.partition(":")
    return cast("type[SegmentAttention]", getattr(import_module(module), attribute))
