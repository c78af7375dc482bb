"""Which layers of a model share a block table, and which tensor of the cache each of them uses. Arithmetic only.

Layers that attend to everything need all blocks of a sequence; layers with a sliding window need the last ones. So that each kind
holds what it needs and all of them draw from one pool, layers are put into groups of equal size:

    layer      0 1 2 3 4 5           windows   w w - w w -
    group 0    0 1 . . . .           with the window w: tables in which what is behind the window is block 0
    group 1    . . . 3 4 .           with the window w, too
    group 2    . . 2 . . 5           full attention: whole tables
    tensor     0 1 0 0 1 1           place within the group

A block is then one block of KV of any group: the i-th layer of each group uses the i-th tensor, at the blocks that the group's own
table names. Blocks of a pool are all of the same size, and go to whoever needs them. Knows nothing of sequences or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TOLERATED_PADDING = 0.25
"""Share of a group's places that may be empty, so that there are fewer tables."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table."""

    layers: tuple[int, ...]
    """In order; layer `layers[i]` uses the cache's i-th tensor."""
    sliding_window: int = 0
    """Tokens that a token attends to in these layers, itself included; 0 for all."""


def layer_groups(windows: Sequence[int]) -> tuple[LayerGroup, ...]:
    """Return the groups of layers whose sliding windows are `windows`, 0 for full attention; those with windows come first.

    As few groups as leave at most a quarter of the places of each kind of layer empty; one where all layers are alike.
    """
    kinds: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    sizes = sorted({len(layers) for layers in kinds.values()})
    size = next(size for size in reversed(range(1, sizes[-1] + 1)) if all(_is_filled(n, size) for n in sizes))
    groups = []
    for window in sorted(kinds, key=lambda window: (window == 0, window)):
        layers = kinds[window]
        groups += [LayerGroup(tuple(layers[start : start + size]), window) for start in range(0, len(layers), size)]
    return tuple(groups)


def num_tensors(groups: Sequence[LayerGroup]) -> int:
    """Return how many layers' worth of KV a block holds."""
    return max(len(group.layers) for group in groups)


def _is_filled(num_layers: int, size: int) -> bool:
    num_places = -(-num_layers // size) * size
    return num_places - num_layers <= _TOLERATED_PADDING * num_places
