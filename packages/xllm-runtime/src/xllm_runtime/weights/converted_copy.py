"""Keeps converted weights on disk, so that only the first start pays for the conversion. Knows nothing of formats read.

A copy is a safetensors file whose name tells its source (see `cache_place`). It is written
under a temporary name and gets its own only when the disk has it all; whoever starts meanwhile converts again. Not being
able to keep a copy is never an error.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import torch

from xllm_framework.errors import ModelLoadError
from xllm_runtime.weights.cache_place import CachePlace
from xllm_runtime.weights.safetensors_file import SafetensorsFile

LAYOUT_VERSION = 1
"""Raised when the same source would be converted differently."""


class ConvertedCopy:
    """The copy of one source file in one dtype: first `open`; if that gives None, `allocate`, fill, `publish`."""

    def __init__(self, source: Path, dtype: torch.dtype, cache_dir: str) -> None:
        label = str(dtype).removeprefix("torch.")
        self._place = CachePlace(source, [source], "converted", label, LAYOUT_VERSION, cache_dir)
        self._temporary: Path | None = None

    def open(self) -> SafetensorsFile | None:
        """Return the copy, or None when there is none that can be read."""
        if not self._place.path.is_file():
            return None
        try:
            return SafetensorsFile(self._place.path)
        except ModelLoadError:
            return None

    def allocate(self, header: bytes, num_data_bytes: int) -> torch.Tensor:
        """Return uint8 [header and data], with the header in place: a mapped temporary file, else plain memory."""
        size = len(header) + num_data_bytes
        try:
            storage = self._map_temporary(size)
        except OSError:
            self._discard()
            storage = torch.empty(size, dtype=torch.uint8)
        storage[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        return storage

    def publish(self) -> None:
        """Give the copy its name once it is on disk; in the background, as nobody waits for it."""
        if self._temporary is not None:
            threading.Thread(target=self._publish, name="xllm-converted-copy", daemon=True).start()

    def _map_temporary(self, size: int) -> torch.Tensor:
        if not hasattr(os, "posix_fallocate"):
            raise OSError("this system cannot reserve space for a file")
        self._place.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._place.folder, prefix=self._place.stem, suffix=".tmp")
        self._temporary = Path(name)
        try:
            # Writing to a mapped file on a full disk kills the process: the space must be there before.
            os.posix_fallocate(descriptor, 0, size)
            mapped = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def _publish(self) -> None:
        if self._temporary is None:
            return
        try:
            with self._temporary.open("rb+") as file:
                os.fsync(file.fileno())
            self._temporary.replace(self._place.path)
            self._place.remove_old()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None
