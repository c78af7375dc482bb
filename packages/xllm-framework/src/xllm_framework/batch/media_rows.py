"""What a step needs to know of images and videos: their rows, and rotary positions that are not indices.

Numpy only; knows nothing of vision towers, or of which media are encoded already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.batch import Batch
from xllm_framework.multimodal.media_item import MediaItem
from xllm_framework.multimodal.prompt_media import PromptMedia

if TYPE_CHECKING:
    from xllm_framework.batch.forward_input import ForwardInput


@dataclass(slots=True)
class MediaRows:
    """The media of a step of T tokens."""

    pieces: list[tuple[MediaItem, int, int, int]] = field(default_factory=list)
    """(item, first, row, count): rows [row, row + count) take embeddings [first, first + count) of the item."""
    rotary_positions: npt.NDArray[np.int32] | None = None
    """[3, T]: positions in time, height and width; None where `ForwardInput.positions` says all."""
    prompts: list[PromptMedia | None] = field(default_factory=list)
    """All media of each sequence's prompt, for workers that want them whole; else empty."""


def add_media(forward_input: ForwardInput, batch: Batch) -> None:
    """Complete the input of `batch` with its media, and make `positions` rotary positions instead of indices."""
    media_rows = MediaRows()
    positions = np.repeat(forward_input.positions[None], 3, axis=0)
    for index, item in enumerate(batch.scheduled):
        media = item.request.media
        if media is None:
            continue
        start, end = item.start, item.start + item.num_scheduled_tokens
        row = int(forward_input.query_start[index])
        if media.positions or media.position_delta:
            positions[:, row : row + end - start] = media.rotary_positions(start, end)
        media_rows.pieces += [
            (piece.item, piece.first, row + piece.token - start, piece.num_tokens) for piece in media.pieces(start, end)
        ]
    forward_input.positions = positions[0]
    if (positions[0] != positions[1]).any() or (positions[0] != positions[2]).any():
        media_rows.rotary_positions = positions
    if media_rows.pieces or media_rows.rotary_positions is not None:
        forward_input.media = media_rows
