"""A loaded catalogue: its items, the paths to them, and from a path's leaf back to the items. Never changes.

Knows nothing of who searches, or of which catalogue is in use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xllm_framework.rec.item_file import TOKENS_PER_ITEM, read_items
from xllm_framework.rec.item_table import ItemTable
from xllm_framework.rec.valid_paths import ValidPaths, build_paths

ITEM_FILES = {"items.bin": False, "items_extended.bin": True}
"""File that a model's folder may bring -> whether it is of the extended form."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Made by `Catalogue.of`."""

    items: ItemTable
    paths: ValidPaths
    _starts: npt.NDArray[np.int64]
    """[leaves + 1]: which of `_rows` belong to a leaf."""
    _rows: npt.NDArray[np.int64]
    """[N]: rows of `items`, by leaf, and in the file's order within one."""

    @classmethod
    def of(cls, items: ItemTable) -> Catalogue:
        """Return the catalogue of `items`."""
        paths, leaves = build_paths(items.tokens)
        counts = np.bincount(leaves, minlength=paths.num_leaves)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(items, paths, starts, np.argsort(leaves, kind="stable").astype(np.int64))

    def rows_of(self, leaf: int, limit: int, seed: int = 0) -> list[int]:
        """Return the rows of `items` with the tokens of `leaf`, at most `limit`: by chance where there are more.

        The choice depends on `seed` and the leaf alone, and keeps the file's order.
        """
        rows: list[int] = self._rows[self._starts[leaf] : self._starts[leaf + 1]].tolist()
        if len(rows) <= limit:
            return rows
        chosen = random.Random(seed * 1_000_003 + leaf).sample(range(len(rows)), limit)
        return [rows[index] for index in sorted(chosen)]


def open_catalogue(
    path: Path, *, vocab_size: int, tokens_per_item: int = TOKENS_PER_ITEM, is_extended: bool = False
) -> Catalogue:
    """Read an item file and prepare it for a model of `vocab_size` tokens.

    Raises:
        InvalidCatalogue: the file cannot be used; says why.
    """
    items = read_items(path, tokens_per_item=tokens_per_item, is_extended=is_extended)
    items.check_vocabulary(vocab_size)
    return Catalogue.of(items)


def bundled_items(model_folder: Path) -> tuple[Path, bool] | None:
    """Return the item file that a model's folder brings, and whether it is extended; None when it brings none."""
    for name, is_extended in ITEM_FILES.items():
        if (model_folder / name).is_file():
            return model_folder / name, is_extended
    return None
