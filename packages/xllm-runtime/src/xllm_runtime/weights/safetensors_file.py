"""Reads safetensors files by mapping them, and lays new ones out. Knows nothing of models.

The format: 8 bytes header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data without holes.
Reading it here, and not with the safetensors library, keeps all tensors of a file views of one storage: neighbours in
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

import torch

from xllm_framework.errors import ModelLoadError

MAX_HEADER_BYTES = 100_000_000
DATA_ALIGNMENT = 64
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: bytes [start, end) of its data."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A mapped safetensors file; raises `ModelLoadError` when it is cut or broken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._size = path.stat().st_size
                if self._size < 8:
                    self._fail("it is shorter than a header")
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from error
        header_bytes = int.from_bytes(self._mapped[:8], "little")
        if header_bytes > min(MAX_HEADER_BYTES, self._size - 8):
            self._fail(f"its header of {header_bytes} bytes goes beyond the end")
        self._data_start = 8 + header_bytes
        self.entries = {entry.name: entry for entry in self._read_entries(self._mapped[8 : self._data_start])}
        """By name, in the header's order."""
        self._storage = torch.frombuffer(self._mapped, dtype=torch.uint8)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a view of the mapped file; raises `ModelLoadError` when there is no such tensor."""
        if name not in self.entries:
            raise ModelLoadError(
                f"{self._path} has no tensor {name!r}, although the checkpoint's index places it there"
            )
        entry = self.entries[name]
        return typed_view(self._storage, entry, self._data_start)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.entries:
            yield name, self.tensor(name)

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
            dtype, shape = DTYPES[field["dtype"]], tuple(int(size) for size in field["shape"])
            start, end = (int(offset) for offset in field["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            self._fail(f"the header entry of tensor {name!r} cannot be understood: {error!r}")
        if end - start != math.prod(shape) * dtype.itemsize or start < 0 or min(shape, default=0) < 0:
            self._fail(f"the offsets of tensor {name!r} do not match its shape {list(shape)}")
        if self._data_start + end > self._size:
            missing = self._data_start + end - self._size
            self._fail(f"it is cut: {missing} bytes are missing at the end of tensor {name!r}")
        return TensorEntry(name, dtype, shape, start, end)

    def _fail(self, why: str) -> NoReturn:
        raise ModelLoadError(f"{self._path} is not a complete safetensors file: {why}")


def lay_out(tensors: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[bytes, list[TensorEntry]]:
    """Return the bytes before the data (length and header), and the entries of `tensors` one after the other.

    The data starts at a multiple of `DATA_ALIGNMENT`, as spaces pad the header.
    """
    entries: list[TensorEntry] = []
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries.append(TensorEntry(name, dtype, shape, start, end))
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, entries


def typed_view(storage: torch.Tensor, entry: TensorEntry, data_start: int) -> torch.Tensor:
    """Return the tensor of `entry` in `storage`, the file's bytes as uint8; a copy only when it lies unaligned."""
    raw = storage[data_start + entry.start : data_start + entry.end]
    if raw.data_ptr() % entry.dtype.itemsize or raw.storage_offset() % entry.dtype.itemsize:
        raw = raw.clone()
    return raw.view(entry.dtype).view(entry.shape)
