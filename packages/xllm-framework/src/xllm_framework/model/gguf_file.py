"""Reads a GGUF file's metadata and tensor table in one pass over the mapped file, and gives views of its tensors.

Every count, length, offset and dimension is checked against the file before it is used, so that a cut or hostile file
ends in `ModelLoadError`. Knows nothing of architectures, tokenizers or what the numbers mean.

Source: the GGUF specification of ggml (docs/gguf.md), versions 2 and 3, little endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import ModelLoadError
from xllm_framework.model.ggml_types import GGML_TYPES, GGUF_MAGIC, GGMLType

MAX_KEY_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
_MIN_ENTRY_BYTES = 8 + 4 + 1
"""Key length, value type and the smallest value."""
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
"""Name length, number of dimensions, type and offset."""

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL = 7
_STRING = 8
_ARRAY = 9

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of the table, its data untouched."""

    name: str
    ggml_type: str
    """Storage type, e.g. F32, Q4_1, Q8_0."""
    shape: tuple[int, ...]
    """In numpy's order: the outermost dimension first, rows last."""
    raw: Bytes
    """uint8 [number of bytes], a view of the mapped file; rows lie one after the other."""


class GGUFFile:
    """A mapped GGUF file. `metadata` and `tensors` are read at construction, tensor data only when looked at.

    Raises:
        ModelLoadError: the file cannot be read, is no GGUF file, or is broken; names the file and the place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: Bytes = _map_file(path)
        reader = _Reader(path, self._mapped)
        self.version = reader.read_version()
        num_tensors = reader.read_count("number of tensors", _MIN_TENSOR_BYTES)
        num_entries = reader.read_count("number of metadata entries", _MIN_ENTRY_BYTES)
        self.metadata: dict[str, Any] = reader.read_metadata(num_entries)
        """Numbers, booleans, strings; lists of strings; numpy arrays of numbers (of booleans: uint8)."""
        self.tensors: dict[str, GGUFTensor] = reader.read_tensors(num_tensors, self._alignment(reader))
        """By name, in the file's order."""

    def _alignment(self, reader: _Reader) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            reader.fail(f"general.alignment is {alignment!r}, not a power of two up to {MAX_ALIGNMENT}")
        return alignment


def _map_file(path: Path) -> Bytes:
    try:
        if path.stat().st_size < len(GGUF_MAGIC):
            raise ModelLoadError(f"{path} is not a GGUF file: it is empty or too short.")
        return np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error


class _Reader:
    """A position in the mapped bytes that only moves forward, and only within the file."""

    def __init__(self, path: Path, mapped: Bytes) -> None:
        self._path = path
        self._mapped = mapped
        self._view = memoryview(mapped.data)
        self._size = len(mapped)
        self._position = 0

    def fail(self, what: str) -> NoReturn:
        """Raise the error for `what`, with the file and the place."""
        raise ModelLoadError(f"{self._path} is a broken GGUF file: {what} (at byte {self._position} of {self._size}).")

    def read_version(self) -> int:
        """Check the magic and return the version."""
        if self._view[:4] != GGUF_MAGIC:
            raise ModelLoadError(f"{self._path} is not a GGUF file: it does not start with {GGUF_MAGIC.decode()}.")
        self._position = 4
        version = self._uint32("version")
        if version not in (2, 3):
            big_endian = version in (2 << 24, 3 << 24)
            what = "is big endian" if big_endian else f"has version {version}"
            raise ModelLoadError(f"{self._path} {what}; GGUF versions 2 and 3, little endian, can be read.")
        return version

    def read_count(self, what: str, min_bytes: int) -> int:
        """Read a uint64 count of things that take at least `min_bytes` each."""
        count = self._uint64(what)
        if count * min_bytes > self._size - self._position:
            self.fail(f"the {what} is {count}, more than the file can hold")
        return count

    def read_metadata(self, num_entries: int) -> dict[str, Any]:
        """Read all key and value pairs."""
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                self.fail(f"the metadata key {key!r} occurs twice")
            metadata[key] = self._value(key, self._uint32(f"the type of {key!r}"))
        return metadata

    def read_tensors(self, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
        """Read the tensor table and make the views, whose offsets count from the next aligned byte."""
        entries = [self._tensor_entry(alignment) for _ in range(num_tensors)]
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, ggml_type, offset, num_bytes in entries:
            if name in tensors:
                self.fail(f"the tensor {name!r} occurs twice")
            start = data_start + offset
            if start + num_bytes > self._size:
                self.fail(f"the data of tensor {name!r} end at byte {start + num_bytes}, behind the end of the file")
            tensors[name] = GGUFTensor(name, ggml_type, shape, self._mapped[start : start + num_bytes])
        return tensors

    def _tensor_entry(self, alignment: int) -> tuple[str, tuple[int, ...], str, int, int]:
        name = self._string("a tensor name", MAX_TENSOR_NAME_BYTES)
        num_dimensions = self._uint32(f"the number of dimensions of {name!r}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self.fail(f"tensor {name!r} has {num_dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
        sizes = [self._uint64(f"a dimension of {name!r}") for _ in range(num_dimensions)]
        type_id = self._uint32(f"the type of {name!r}")
        if type_id not in GGML_TYPES:
            self.fail(f"tensor {name!r} has the unknown ggml type {type_id}")
        ggml_type = GGML_TYPES[type_id]
        offset = self._uint64(f"the offset of {name!r}")
        if offset % alignment:
            self.fail(f"the offset {offset} of tensor {name!r} is not a multiple of the alignment {alignment}")
        return name, tuple(reversed(sizes)), ggml_type.name, offset, self._num_bytes(name, sizes, ggml_type)

    def _num_bytes(self, name: str, sizes: list[int], ggml_type: GGMLType) -> int:
        num_elements = 1
        for size in sizes:
            num_elements *= size
        if num_elements == 0 or sizes[0] % ggml_type.block_size:
            self.fail(
                f"tensor {name!r} of type {ggml_type.name} cannot have rows of {sizes[0]} in {num_elements} elements"
            )
        return num_elements // ggml_type.block_size * ggml_type.block_bytes

    def _value(self, key: str, type_id: int) -> Any:
        if type_id == _STRING:
            return self._string(f"the value of {key!r}", self._size)
        if type_id == _ARRAY:
            return self._array(key)
        number = self._numbers(key, type_id, 1)[0].item()
        return bool(number) if type_id == _BOOL else number

    def _array(self, key: str) -> Any:
        item_type = self._uint32(f"the item type of {key!r}")
        count = self.read_count(f"length of {key!r}", 8 if item_type == _STRING else 1)
        if item_type == _STRING:
            return self._strings(key, count)
        if item_type == _ARRAY:
            self.fail(f"{key!r} is an array of arrays, which no model needs")
        return self._numbers(key, item_type, count)

    def _numbers(self, key: str, type_id: int, count: int) -> npt.NDArray[Any]:
        if type_id not in _SCALARS:
            self.fail(f"{key!r} has the unknown value type {type_id}")
        start = self._advance(count * _SCALARS[type_id].itemsize, f"the value of {key!r}")
        numbers: npt.NDArray[Any] = np.frombuffer(self._view, _SCALARS[type_id], count, start).copy()
        return numbers

    def _strings(self, key: str, count: int) -> list[str]:
        """Read `count` strings. Vocabularies make this the hot loop of a start: hence no calls but `unpack` and `str`."""
        view, size, unpack = self._view, self._size, _UINT64.unpack_from
        position = self._position
        strings: list[str] = []
        append = strings.append
        for _ in range(count):
            start = position + 8
            if start > size:
                break
            position = start + unpack(view, position)[0]
            if position > size:
                break
            append(str(view[start:position], "utf-8", "replace"))
        if len(strings) < count:
            self.fail(f"item {len(strings)} of {key!r} goes beyond the end of the file")
        self._position = position
        return strings

    def _string(self, what: str, max_bytes: int) -> str:
        length = self._uint64(f"the length of {what}")
        if length > max_bytes:
            self.fail(f"{what} has a length of {length} bytes, more than {max_bytes}")
        start = self._advance(length, what)
        return str(self._view[start : start + length], "utf-8", "replace")

    def _uint32(self, what: str) -> int:
        value: int = _UINT32.unpack_from(self._view, self._advance(4, what))[0]
        return value

    def _uint64(self, what: str) -> int:
        value: int = _UINT64.unpack_from(self._view, self._advance(8, what))[0]
        return value

    def _advance(self, num_bytes: int, what: str) -> int:
        """Return the position and step over `num_bytes`, if the file has them."""
        start = self._position
        if start + num_bytes > self._size:
            self.fail(f"{what} goes beyond the end of the file")
        self._position = start + num_bytes
        return start
