"""Leave-one-out: of every user, the last film is for the test, the one before it for validation, the rest for training.

Also how films become prompts: three tokens each, the newest `HISTORY` films, after a begin token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from movielens import MovieLens
from semantic_ids import CODES, semantic_ids

BEGIN = 0
FIRST_TOKEN = 1
HISTORY = 50
VOCAB_SIZE = FIRST_TOKEN + 3 * CODES


@dataclass(frozen=True)
class Split:
    """Everything that training and evaluation need; items are numbered from 0."""

    item_numbers: list[int]
    """The data set's own number of each item."""
    tokens: np.ndarray
    """int32 [items, 3]: token ids."""
    train: list[list[int]]
    validation: list[int]
    test: list[int]

    def prompt(self, items: list[int]) -> list[int]:
        """Return the prompt of a history."""
        return [BEGIN, *self.tokens[items[-HISTORY:]].flatten().tolist()]


def split(data: MovieLens, tokens: np.ndarray | None = None) -> Split:
    """Return the split, with the `tokens` of a catalogue, or new ones that know the training part alone."""
    numbers = sorted(data.titles)
    index = {number: position for position, number in enumerate(numbers)}
    histories = [[index[item] for item in history] for history in data.histories.values() if len(history) >= 5]
    train = [history[:-2] for history in histories]
    if tokens is None:
        tokens = (semantic_ids(train, len(numbers)) + FIRST_TOKEN + CODES * np.arange(3)).astype(np.int32)
    return Split(numbers, tokens, train, [history[-2] for history in histories], [history[-1] for history in histories])
