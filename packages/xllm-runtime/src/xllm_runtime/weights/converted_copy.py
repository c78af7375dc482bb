"""Keeps converted weights on disk, so that only the first start pays for the conversion. Knows nothing of formats read.

A copy is a safetensors file named after the source's path, the dtype, and a fingerprint of the source. It is written
under a temporary name and gets its own only when the disk has it all; whoever starts meanwhile converts again. Not being
able to keep a copy is never an error.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from xllm_framework.errors import ModelLoadError
from xllm_runtime.weights.safetensors_file import SafetensorsFile

LAYOUT_VERSION = 1
"""Raised when the same source would be converted differently."""
FINGERPRINT_BYTES = 1 << 20
STALE_AFTER_S = 3600
"""A temporary file of this age was left by a process that died."""


class ConvertedCopy:
    """The copy of one source file in one dtype: first `open`; if that gives None, `allocate`, fill, `publish`."""

    def __init__(self, source: Path, dtype: torch.dtype, cache_dir: str) -> None:
        folder = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
        self._folder = folder / "converted"
        path_hash = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
        self._stem = f"{source.stem}.{path_hash}.{str(dtype).removeprefix('torch.')}."
        self._path = self._folder / f"{self._stem}{_fingerprint(source)}.safetensors"
        self._temporary: Path | None = None

    def open(self) -> SafetensorsFile | None:
        """Return the copy, or None when there is none that can be read."""
        if not self._path.is_file():
            return None
        try:
            return SafetensorsFile(self._path)
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
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=self._stem, suffix=".tmp")
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
            self._temporary.replace(self._path)
            self._remove_old()
        except OSError:
            self._discard()

    def _remove_old(self) -> None:
        """Delete copies of what the same path held before, and what dead processes left."""
        for other in self._folder.iterdir():
            is_old_copy = other.name.startswith(self._stem) and other.suffix == ".safetensors" and other != self._path
            with suppress(OSError):
                is_stale = other.suffix == ".tmp" and time.time() - other.stat().st_mtime > STALE_AFTER_S
                if is_old_copy or is_stale:
                    other.unlink()

    def _discard(self) -> None:
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None


def default_cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/xllm, or ~/.cache/xllm."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if root else Path("~/.cache").expanduser()) / "xllm"


def _fingerprint(source: Path) -> str:
    status = source.stat()
    digest = hashlib.sha256(f"{LAYOUT_VERSION} {status.st_size} {status.st_mtime_ns}".encode())
    with source.open("rb") as file:
        digest.update(file.read(FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]
