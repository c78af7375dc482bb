"""The grammar of any answer: what follows a bounded thinking where nothing else is asked for. Knows no library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_runtime.constraint.vocabulary import Vocabulary


class FreeGrammar:
    """See `Grammar`; also its own state, as there is nothing to keep."""

    is_complete = False
    error: str | None = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._mask = vocabulary.full_mask
        self.num_mask_words = len(self._mask)

    def new_state(self) -> FreeGrammar:
        """See `Grammar.new_state`."""
        return self

    def copy(self) -> FreeGrammar:
        """See `ConstraintState.copy`."""
        return self

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        """See `ConstraintState.fill_mask`."""
        mask[:] = self._mask

    def accept(self, token_id: int) -> None:
        """See `ConstraintState.accept`."""
