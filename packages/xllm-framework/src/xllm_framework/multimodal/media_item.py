"""One image or video of a prompt, ready for a vision tower. Knows nothing of files, models or prompts' texts.

Pixels travel as uint8, once a frame, before they are normalised and cut into patches: an eighth of what a tower computes
on, in float32 and with images doubled in time. The worker does the rest on its device.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

HASH_BYTES = 16

MediaKind = Literal["image", "video"]


class MediaItem(msgspec.Struct, array_like=True, frozen=True):
    """An image or a video with E embeddings, one for each of its place-holders."""

    kind: MediaKind
    content_hash: bytes
    """BLAKE2b over everything that its embeddings and its tokens' positions depend on; equal hashes are equal media."""
    grid: tuple[int, int, int]
    """Patches in time, height and width; for towers without one grid, (tiles, rows, columns) as the tower has it."""
    shape: tuple[int, ...]
    """Of the array in `content`."""
    content: bytes
    """uint8 pixels [frames, height, width, 3], or float32 embeddings [E, width] where `is_embedded`."""
    ranges: list[tuple[int, int]] = []
    """Half-open ranges of its place-holders in the prompt, rising; E tokens in all."""
    is_embedded: bool = False
    timestamps: tuple[float, ...] = ()
    """When the frames of a video are, in seconds: one for each of `grid`'s first number; empty where nobody needs them."""

    @property
    def num_embeddings(self) -> int:
        """E."""
        return sum(end - start for start, end in self.ranges)

    @property
    def start(self) -> int:
        """The prompt's first token that stands for it."""
        return self.ranges[0][0]

    def array(self) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Return `content` as an array, read-only and without a copy."""
        if self.is_embedded:
            return np.frombuffer(self.content, np.float32).reshape(self.shape)
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)

    def at(self, ranges: list[tuple[int, int]]) -> MediaItem:
        """Return the same content with other place-holders."""
        return msgspec.structs.replace(self, ranges=ranges)


def hash_media(kind: MediaKind, grid: tuple[int, int, int], content: bytes, details: str = "") -> bytes:
    """Return the content hash; `details` names what else counts, such as seconds between frames or a size before resizing."""
    hasher = hashlib.blake2b(f"{kind} {grid} {details}".encode(), digest_size=HASH_BYTES)
    hasher.update(content)
    return hasher.digest()
