"""How many workers share the work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Parallelism options."""

    dp_size: int = 1
    """Copies of the model (data-parallel ranks), each with a KV cache of its own; a request goes to the one with most room. On a
    CPU they share the cores; otherwise rank n takes device n."""
