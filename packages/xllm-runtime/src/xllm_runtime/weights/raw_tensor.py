"""A checkpoint's tensor as it is stored. Knows nothing of files, of models or of what its numbers mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RawTensor:
    """The bytes of one tensor, a view of a mapped file."""

    name: str
    """As in Hugging Face checkpoints."""
    kind: str
    """How numbers are stored: the name of a safetensors type, or of a ggml type (F32 and the like are the same in both)."""
    shape: tuple[int, ...]
    """The outermost dimension first."""
    raw: npt.NDArray[np.uint8]
    """uint8 [number of bytes], rows one after the other."""
    permuted_heads: int = 0
    """Heads whose rows are stored for interleaved rotary embedding, [heads, half, 2]; 0 for rows in the usual order."""
