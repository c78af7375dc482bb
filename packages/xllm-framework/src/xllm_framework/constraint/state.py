"""What the engine side needs of a compiled constraint. Knows no library; whoever compiles implements these."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class ConstraintState(Protocol):
    """How far one sequence has come in its grammar. Used by one thread."""

    @property
    def num_mask_words(self) -> int:
        """W, words of 32 tokens that a mask has."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end: the text is whole."""

    @property
    def error(self) -> str | None:
        """Why it can go no further, as when a limit of the library is reached; None while all is well."""

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        """Set bit t % 32 of word t // 32 of `mask` (int32 [W], contiguous) where token t may follow, clear all others.

        End tokens may follow exactly where the text is whole. After an `error` no token may.
        """

    def accept(self, token_id: int) -> None:
        """Go on by a token that was drawn; one that may not follow becomes an `error`."""

    def copy(self) -> ConstraintState:
        """Return an equal state that goes its own way."""


class Grammar(Protocol):
    """A compiled constraint. Thread-safe."""

    def new_state(self) -> ConstraintState:
        """Return the state of a sequence without output."""
