"""Media that come as what a vision tower made of them, by another server or a script. Every byte of them is hostile.

    {"data": ..., "shape": [E, width], "dtype": "float32", "grid": [2, 24, 24], "timestamps": [0.0, 1.0]}

`data` is base64 of little-endian numbers, row after row, or lists of numbers; in a script also an array. `grid` is in
patches, for models whose positions follow it; `timestamps` are seconds, one for each of a video's frames in `grid`. The whole
may be base64 of such a map in msgpack, where `data` is binary: what `/v1/embeddings` answers for the task mm_embed can be
sent as it is. Never pickle. Knows nothing of models' rules beyond merged patches.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidRequest
from xllm_framework.multimodal import MediaItem
from xllm_framework.multimodal.media_item import MediaKind, hash_media
from xllm_runtime.processors.video_file import MAX_FRAMES

Floats = npt.NDArray[np.float32]
MAX_SIDE = 1 << 20
MAX_SECONDS = 1e6
"""Of a timestamp: eleven days."""


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """The map that the module describes; what `mm_embed` answers beside it is ignored."""

    data: Any
    shape: tuple[int, int] | None = None
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    grid: tuple[int, int, int] | None = None
    timestamps: list[float] = []
    index: int = 0
    kind: MediaKind = "image"
    object: str = ""


@dataclass(frozen=True, slots=True)
class EmbeddedMedia:
    """The embeddings of one medium, checked as far as no model has to be known."""

    values: Floats
    """[E, width], all finite."""
    grid: tuple[int, int, int] | None
    timestamps: tuple[float, ...] = ()
    """Rising, in seconds."""


def read_embeddings(content: Any, place: str, max_bytes: int) -> EmbeddedMedia:
    """Return what a content part holds.

    Raises:
        InvalidRequest: it is not as the module says, or larger than `max_bytes`; names `place` and the field.
    """
    values: Any = content.get("data") if isinstance(content, dict) else content
    if isinstance(values, np.ndarray):
        fields = {} if content is values else {name: content[name] for name in content.keys() - {"data"}}
        written = _written({"data": b"", **fields}, place, max_bytes)
    else:
        written = _written(content, place, max_bytes)
        values = _listed(written.data, place) if isinstance(written.data, list) else _binary(written, place, max_bytes)
    grid = None if written.grid is None else _grid(written.grid, place)
    return EmbeddedMedia(_checked(values, place), grid, _timestamps(written.timestamps, place))


def merged_grid(kind: MediaKind, embedded: EmbeddedMedia, unit: int, place: str) -> tuple[int, int, int]:
    """Return the grid of a medium whose rows stand for `unit` x `unit` patches each.

    Raises:
        InvalidRequest: it has no grid, or one that does not make its rows; names `place`.
    """
    num_rows = len(embedded.values)
    frames, height, columns = embedded.grid or (0, 0, 0)
    is_wrong = height % unit or columns % unit or frames * height * columns != num_rows * unit**2
    if is_wrong or frames > (1 if kind == "image" else MAX_FRAMES):
        first = "1" if kind == "image" else "frames"
        raise InvalidRequest(
            f"{place}: grid must be [{first}, height, width] in patches, multiples of {unit} a frame, with {unit**2} for "
            f"each of the {num_rows} rows of data.",
            "messages",
        )
    return (frames, height, columns)


def frame_times(embedded: EmbeddedMedia, num_frames: int, place: str) -> tuple[float, ...]:
    """Return the seconds of a video's frames.

    Raises:
        InvalidRequest: there is not one for each; names `place`.
    """
    if len(embedded.timestamps) != num_frames:
        raise InvalidRequest(
            f"{place}: timestamps must give the seconds of each of the {num_frames} frames of grid, not of "
            f"{len(embedded.timestamps)}.",
            "messages",
        )
    return embedded.timestamps


def embedded_item(kind: MediaKind, embedded: EmbeddedMedia, grid: tuple[int, int, int], details: str = "") -> MediaItem:
    """Return the item that stands for `embedded` in a prompt; `details` as for `hash_media`."""
    content = embedded.values.tobytes()
    content_hash = hash_media(kind, grid, content, f"embeddings {embedded.values.shape} {details}")
    return MediaItem(
        kind,
        content_hash,
        grid,
        embedded.values.shape,
        content,
        is_embedded=True,
        timestamps=embedded.timestamps,
    )


def _written(content: Any, place: str, max_bytes: int) -> _Written:
    try:
        if isinstance(content, str):
            if len(content) > 2 * max_bytes:
                raise _too_large(place, max_bytes)
            return msgspec.msgpack.decode(b64decode(content, validate=True), type=_Written)
        return msgspec.convert(content, _Written, builtin_types=(bytes,))
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{place} holds no embeddings: {error}.", "messages") from error


def _binary(written: _Written, place: str, max_bytes: int) -> npt.NDArray[Any]:
    """Return the numbers of base64 or of bytes as [E, width]."""
    data, shape = written.data, written.shape
    if not isinstance(data, str | bytes):
        raise InvalidRequest(f"{place}: data is neither base64, nor bytes, nor lists of numbers.", "messages")
    if len(data) > 2 * max_bytes:
        raise _too_large(place, max_bytes)
    try:
        content = b64decode(data, validate=True) if isinstance(data, str) else data
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{place}: data is no base64: {error}.", "messages") from error
    if shape is None or not all(0 < side < MAX_SIDE for side in shape):
        raise InvalidRequest(f"{place}: shape must give the rows and columns of data.", "messages")
    item_bytes = 4 if written.dtype == "float32" else 2
    if len(content) != shape[0] * shape[1] * item_bytes:
        raise InvalidRequest(
            f"{place}: data has {len(content)} bytes, but {shape[0]} x {shape[1]} numbers of {written.dtype} have "
            f"{shape[0] * shape[1] * item_bytes}.",
            "messages",
        )
    if written.dtype == "bfloat16":
        wide = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return np.frombuffer(content, "<f4" if written.dtype == "float32" else "<f2").reshape(shape)


def _listed(rows: list[Any], place: str) -> npt.NDArray[Any]:
    try:
        return np.array(msgspec.convert(rows, list[list[float]]), np.float64)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"{place}: data is no list of equally long lists of numbers.", "messages") from error


def _checked(values: npt.NDArray[Any], place: str) -> Floats:
    if values.ndim != 2 or not values.size or values.dtype.kind != "f":
        raise InvalidRequest(
            f"{place}: data is {values.dtype} of shape {list(values.shape)}, not floats [rows, columns].", "messages"
        )
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(result).all():
        raise InvalidRequest(f"{place}: data holds numbers that are not finite.", "messages")
    return result


def _grid(grid: Any, place: str) -> tuple[int, int, int]:
    is_grid = isinstance(grid, list | tuple) and len(grid) == 3
    if not is_grid or not all(isinstance(side, int) and 0 < side < MAX_SIDE for side in grid):
        raise InvalidRequest(f"{place}: grid must be three numbers of patches, in time, height and width.", "messages")
    return (grid[0], grid[1], grid[2])


def _timestamps(seconds: Sequence[float], place: str) -> tuple[float, ...]:
    if not all(0.0 <= second <= MAX_SECONDS for second in seconds) or any(a > b for a, b in pairwise(seconds)):
        raise InvalidRequest(f"{place}: timestamps must be rising seconds from 0 to {MAX_SECONDS:.0f}.", "messages")
    return tuple(seconds)


def _too_large(place: str, max_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"{place} is larger than {max_bytes} bytes, which is the limit (max_media_bytes).", "messages"
    )
