"""Items by column: number, tokens, and perhaps a document id and a type. Knows nothing of files or of searches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidRequest

MAX_TOKENS_PER_ITEM = 8
"""Longest semantic id; as many rounds as a search may take."""


class InvalidCatalogue(InvalidRequest):
    """A catalogue cannot be used: cut, with an item twice, or with tokens that the model lacks. The message says where."""


@dataclass(frozen=True, slots=True)
class ItemTable:
    """N items of L tokens each. Several items may have the same tokens; item numbers are unique.

    Raises:
        InvalidCatalogue: the columns differ in length, an item number comes twice, a token is negative, or there is none.
    """

    item_ids: npt.NDArray[np.int64]
    """[N]"""
    tokens: npt.NDArray[np.int32]
    """[N, L]: the semantic ids."""
    document_ids: list[str] | None = None
    """[N] of an extended catalogue: what the service calls the item."""
    kinds: list[str] | None = None
    """[N] of an extended catalogue: the items' types."""

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or not 1 <= self.tokens.shape[1] <= MAX_TOKENS_PER_ITEM:
            raise InvalidCatalogue(f"Items must have 1 to {MAX_TOKENS_PER_ITEM} tokens.")
        texts = [column for column in (self.document_ids, self.kinds) if column is not None]
        if any(length != len(self.item_ids) for length in (len(self.tokens), *map(len, texts))):
            raise InvalidCatalogue("The columns of the items differ in length.")
        if not len(self.item_ids):
            raise InvalidCatalogue("The catalogue holds no item.")
        ordered = np.sort(self.item_ids)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise InvalidCatalogue(f"Item {repeated[0]} is in the catalogue twice.")
        self._check_tokens(np.iinfo(np.int32).max)

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.item_ids)

    @property
    def tokens_per_item(self) -> int:
        """L."""
        return int(self.tokens.shape[1])

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check that a model of `vocab_size` tokens has all of them.

        Raises:
            InvalidCatalogue: it lacks one; names the item.
        """
        self._check_tokens(vocab_size - 1)

    def _check_tokens(self, highest: int) -> None:
        wrong = ((self.tokens < 0) | (self.tokens > highest)).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidCatalogue(
                f"Item {self.item_ids[row]} has tokens {self.tokens[row].tolist()}, but ids go from 0 to {highest}."
            )
