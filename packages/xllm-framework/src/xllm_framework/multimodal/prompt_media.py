"""All media of one prompt, and where they lie among its tokens. Knows nothing of blocks, schedules or vision towers.

A prompt of N tokens with two images, the place-holders of each as one half-open range:

    token       0 ... | 5 ......... 21 | ... | 30 ... 36 | ... N
    stands for  text  | image a, rows   | text| image b   | text
                      | 0 .......... 16 |     | 0 ..... 6 |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.multimodal.media_item import MediaItem


class MediaPiece(NamedTuple):
    """Consecutive embeddings [first, first + num_tokens) of `item`, for tokens [token, token + num_tokens) of the prompt."""

    item: MediaItem
    first: int
    token: int
    num_tokens: int


class PromptMedia(msgspec.Struct, array_like=True, frozen=True):
    """The media of a prompt of N tokens, in order; all sequences of a request share it."""

    items: list[MediaItem]
    positions: bytes = b""
    """int32 [3, N]: rotary position of each prompt token in time, height and width; empty where positions are indices."""
    position_delta: int = 0
    """A token behind the prompt at index i has rotary position i + position_delta."""

    def pieces(self, start: int, end: int) -> Iterator[MediaPiece]:
        """Yield what tokens [start, end) need of the embeddings, in order of tokens."""
        for item in self.items:
            if item.ranges[-1][1] <= start or item.start >= end:
                continue
            first = 0
            for low, high in item.ranges:
                token, stop = max(low, start), min(high, end)
                if token < stop:
                    yield MediaPiece(item, first + token - low, token, stop - token)
                first += high - low

    def begun_in(self, start: int, end: int) -> Iterator[MediaItem]:
        """Yield the items whose first place-holder lies in [start, end): computing those tokens may run the encoder."""
        return (item for item in self.items if start <= item.start < end)

    def tag(self, start: int, end: int) -> bytes:
        """Return what tokens [start, end) stand for beyond their ids, for keys of the prefix cache; empty for text."""
        return b"".join(
            piece.item.content_hash + piece.first.to_bytes(4, "little") + (piece.token - start).to_bytes(4, "little")
            for piece in self.pieces(start, end)
        )

    def rotary_positions(self, start: int, end: int) -> npt.NDArray[np.int32]:
        """Return int32 [3, end - start], the rotary positions of tokens [start, end) of a sequence, output included."""
        indices = np.arange(start, end, dtype=np.int32) + np.int32(self.position_delta)
        result = np.repeat(indices[None], 3, axis=0)
        known = np.frombuffer(self.positions, np.int32).reshape(3, -1)[:, start:end]
        result[:, : known.shape[1]] = known
        return result
