"""Which catalogue is in use, and the one before it. Any thread; knows nothing of files or of searches.

A search keeps the catalogue that it began with, so a change neither waits for searches nor disturbs them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from xllm_framework.rec.catalogue import Catalogue
from xllm_framework.rec.item_table import InvalidCatalogue


class Served(NamedTuple):
    """A catalogue in use."""

    catalogue: Catalogue
    version: int
    """Counts every change, rollbacks too."""


class CatalogueStore:
    """Holds two catalogues at most."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._lock = threading.Lock()
        self._served = Served(catalogue, 1)
        self._previous: Catalogue | None = None

    @property
    def served(self) -> Served:
        """What new searches take."""
        return self._served

    def replace(self, catalogue: Catalogue) -> Served:
        """Serve `catalogue` from now on, and keep the one before for `roll_back`.

        Raises:
            InvalidCatalogue: its items have another number of tokens, which searches under way could not mix.
        """
        expected = self._served.catalogue.items.tokens_per_item
        if catalogue.items.tokens_per_item != expected:
            raise InvalidCatalogue(
                f"The catalogue has items of {catalogue.items.tokens_per_item} tokens, but {expected} are served."
            )
        with self._lock:
            self._previous = self._served.catalogue
            self._served = Served(catalogue, self._served.version + 1)
            return self._served

    def roll_back(self) -> Served:
        """Serve the catalogue before the newest again; a second call goes forth again.

        Raises:
            InvalidCatalogue: there was none.
        """
        with self._lock:
            if self._previous is None:
                raise InvalidCatalogue("There is no catalogue to go back to: none was replaced yet.")
            self._previous, catalogue = self._served.catalogue, self._previous
            self._served = Served(catalogue, self._served.version + 1)
            return self._served
