"""Where the copy of a checkpoint in another form lies in the user's cache. Knows nothing of forms.

A copy is named after its source's path, the form, and a fingerprint of the source, so that a changed source never meets
an old copy.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FINGERPRINT_BYTES = 1 << 20
STALE_AFTER_S = 3600
"""A temporary file of this age was left by a process that died."""
TEMPORARY_SUFFIXES = (".tmp", ".partial")


class CachePlace:
    """The place of one copy, in the folder `kind` of `cache_dir` ("" is the user's cache).

    `label` tells forms of one source apart; `version` is raised when the same source would be copied differently.
    """

    def __init__(
        self, source: Path, files: Sequence[Path], kind: str, label: str, version: int, cache_dir: str
    ) -> None:
        root = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
        path_hash = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
        self.fingerprint = _fingerprint(files, version)
        self.folder = root / kind
        self.stem = f"{source.stem}.{path_hash}.{label}."
        self.suffix = ".safetensors" if kind == "converted" else f".{kind}"
        self.path = self.folder / f"{self.stem}{self.fingerprint}{self.suffix}"

    def remove_old(self) -> None:
        """Delete copies of what the same path held before, and what dead processes left."""
        for other in self.folder.iterdir():
            is_old_copy = other.name.startswith(self.stem) and other.suffix == self.suffix and other != self.path
            with suppress(OSError):
                is_temporary = other.suffix in TEMPORARY_SUFFIXES
                is_stale = is_temporary and time.time() - other.stat().st_mtime > STALE_AFTER_S
                if is_old_copy or is_stale:
                    other.unlink()


def default_cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/xllm, or ~/.cache/xllm."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if root else Path("~/.cache").expanduser()) / "xllm"


def _fingerprint(files: Sequence[Path], version: int) -> str:
    digest = hashlib.sha256(str(version).encode())
    for path in files:
        status = path.stat()
        digest.update(f" {path.name} {status.st_size} {status.st_mtime_ns} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]
