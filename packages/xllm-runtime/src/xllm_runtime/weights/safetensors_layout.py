"""Safetensors files as bytes: maps them, reads their tables, lays new ones out. Knows nothing of models or of torch.

The format: 8 bytes header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data without holes.
Reading it here, and not with the safetensors library, keeps all tensors of a file views of one mapping: neighbours in
the file are neighbours in memory, which lets stacked weights be adopted without a copy (see `layers.parameter`).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from xllm_framework.errors import ModelLoadError
from xllm_runtime.weights.raw_tensor import RawTensor

MAX_HEADER_BYTES = 100_000_000
DATA_ALIGNMENT = 64
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of a number, by the format's names of types."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: bytes [start, end) of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class MappedSafetensors:
    """A mapped safetensors file; raises `ModelLoadError` when it is cut or broken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._size = path.stat().st_size
                if self._size < 8:
                    self._fail("it is shorter than a header")
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from error
        header_bytes = int.from_bytes(self.mapped[:8], "little")
        if header_bytes > min(MAX_HEADER_BYTES, self._size - 8):
            self._fail(f"its header of {header_bytes} bytes goes beyond the end")
        self.data_start = 8 + header_bytes
        """Where the data begin, in bytes."""
        self.entries = {entry.name: entry for entry in self._read_entries(self.mapped[8 : self.data_start])}
        """By name, in the header's order."""

    def entry(self, name: str) -> TensorEntry:
        """Return the entry of a tensor that an index places here; raises `ModelLoadError` when there is none."""
        if name not in self.entries:
            raise ModelLoadError(
                f"{self._path} has no tensor {name!r}, although the checkpoint's index places it there"
            )
        return self.entries[name]

    def raw(self, name: str) -> RawTensor:
        """Return a tensor as bytes of the mapped file; raises `ModelLoadError` when there is none."""
        entry = self.entry(name)
        content = np.frombuffer(self.mapped, np.uint8, entry.end - entry.start, self.data_start + entry.start)
        return RawTensor(name, entry.dtype, entry.shape, content)

    def _read_entries(self, header: bytes) -> Iterator[TensorEntry]:
        try:
            fields = json.loads(header)
        except ValueError as error:
            self._fail(f"its header is no JSON: {error}")
        if not isinstance(fields, dict):
            self._fail("its header is no JSON object")
        for name, field in fields.items():
            if name != "__metadata__":
                yield self._read_entry(name, field)

    def _read_entry(self, name: str, field: Any) -> TensorEntry:
        try:
            dtype, shape = field["dtype"], tuple(int(size) for size in field["shape"])
            start, end = (int(offset) for offset in field["data_offsets"])
            item_bytes = ITEM_BYTES[dtype]
        except (KeyError, TypeError, ValueError) as error:
            self._fail(f"the header entry of tensor {name!r} cannot be understood: {error!r}")
        if end - start != math.prod(shape) * item_bytes or start < 0 or min(shape, default=0) < 0:
            self._fail(f"the offsets of tensor {name!r} do not match its shape {list(shape)}")
        if self.data_start + end > self._size:
            missing = self.data_start + end - self._size
            self._fail(f"it is cut: {missing} bytes are missing at the end of tensor {name!r}")
        return TensorEntry(name, dtype, shape, start, end)

    def _fail(self, why: str) -> NoReturn:
        raise ModelLoadError(f"{self._path} is not a complete safetensors file: {why}")


def lay_out(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[TensorEntry]]:
    """Return the bytes before the data (length and header), and the entries of `tensors`
    (name, dtype, shape) one after the other.

    The data starts at a multiple of `DATA_ALIGNMENT`, as spaces pad the header.
    """
    entries: list[TensorEntry] = []
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        entries.append(TensorEntry(name, dtype, shape, start, end))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, entries
