"""Which tokens the rows of a step may take that are constrained. Knows nothing of grammars or of tensors."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.constraint import ConstraintState


@dataclass(slots=True)
class AllowedTokens:
    """The C constrained rows among the R sampled ones."""

    rows: npt.NDArray[np.int64]
    """[C], rising."""
    bits: npt.NDArray[np.int32]
    """[C, W]; bit t % 32 of word t // 32 says whether token t is allowed. W covers the vocabulary."""

    @classmethod
    def of(cls, constrained: List[tuple[int, ConstraintState]]) -> AllowedTokens:
        """Return the masks of one or more (row, state)."""
        rows = np.array([row for row, _ in constrained], np.int64)
        bits = np.zeros((len(rows), constrained[0][1].num_mask_words), np.int32)
        for mask, (_, state) in zip(bits, constrained, strict=True):
            state.fill_mask(mask)
        return cls(rows, bits)

    def unpacked(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Return bool [C, V]: whether each token is allowed."""
        flags = np.unpackbits(self.bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
        return flags.view(np.bool_)
