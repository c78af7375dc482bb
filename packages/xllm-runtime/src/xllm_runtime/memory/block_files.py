"""KV blocks in files: one file a block, bounded in bytes, each with a seal that nothing else passes. Knows nothing of threads.

A file holds MAGIC, the key of its block, the payload, and a seal: keyed BLAKE2b (RFC 7693) over all of that and over what the
KV was computed with. So a file that is broken, cut short, of another model or another secret is refused, removed, and computed
anew. Files are written under another name and moved into place, so that a crash leaves no half of one. Their names are hashes
of keys, and keys are hashes with a secret: neither tells of prompts. The KV itself is not encrypted: the folder is the owner's
alone (mode 0700).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from collections import OrderedDict
from pathlib import Path

from xllm_framework.errors import InvalidConfig

MAGIC = b"XLLMKV01"
KEY_BYTES = 16
SEAL_BYTES = 32
_SECRET_NAME = "secret"
_SECRET_BYTES = 32
_SUFFIX = ".kv"
_UNFINISHED = ".part"

logger = logging.getLogger(__name__)


class BlockFiles:
    """Payloads by key in `folder`, the least recently used removed first. Not for several threads at once.

    Args:
        folder: made if it is missing. What it keeps outlives the process.
        fingerprint: names the model, its type and its layout; files of others lie apart and are never read.
        payload_bytes: of every block.
        max_bytes: of all files.

    Raises:
        InvalidConfig: the folder cannot be used.
    """

    def __init__(self, folder: Path, fingerprint: bytes, payload_bytes: int, max_bytes: int) -> None:
        self._payload_bytes = payload_bytes
        self._max_files = max_bytes // self.file_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._secret = _read_secret(folder / _SECRET_NAME)
            self._folder = folder / self._hash(b"folder", fingerprint).hex()[:32]
            self._folder.mkdir(exist_ok=True, mode=0o700)
            self._known = self._scan()
        except OSError as error:
            raise InvalidConfig(f"archive_path {folder} cannot be used: {error.strerror or error}.") from error
        self._seal_key = self._hash(b"seal", fingerprint)
        self.prefix_secret = self._hash(b"prefix", fingerprint)
        """Secret of a prefix cache whose keys are to be the same in the next process, and others for another model."""

    @property
    def file_bytes(self) -> int:
        """Bytes of every file."""
        return len(MAGIC) + KEY_BYTES + self._payload_bytes + SEAL_BYTES

    def __len__(self) -> int:
        """Return how many files there are."""
        return len(self._known)

    def __contains__(self, key: bytes) -> bool:
        return self._name(key) in self._known

    def write(self, key: bytes, payload: bytes) -> None:
        """Keep a payload, and remove older ones to make room. A disk that refuses is not an error: nothing is kept."""
        name = self._name(key)
        if self._max_files == 0 or name in self._known:
            return
        while len(self._known) >= self._max_files:
            self._remove(next(iter(self._known)))
        content = MAGIC + key + payload
        unfinished = self._folder / (name + _UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.write(self._seal(content))
            unfinished.replace(self._folder / (name + _SUFFIX))
        except OSError as error:
            logger.warning("A KV block cannot be kept in %s: %s.", self._folder, error)
            unfinished.unlink(missing_ok=True)
            return
        self._known[name] = None

    def read(self, key: bytes) -> bytes | None:
        """Return a payload; None if there is no sound one, which is removed then."""
        name = self._name(key)
        if name not in self._known:
            return None
        try:
            content = (self._folder / (name + _SUFFIX)).read_bytes()
        except OSError:
            content = b""
        body, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
        is_sound = len(content) == self.file_bytes and body[: len(MAGIC) + KEY_BYTES] == MAGIC + key
        if not is_sound or not secrets.compare_digest(seal, self._seal(body)):
            logger.warning("The KV block %s in %s is broken, and will be computed anew.", name, self._folder)
            self._remove(name)
            return None
        self._known.move_to_end(name)
        return body[len(MAGIC) + KEY_BYTES :]

    def _scan(self) -> OrderedDict[str, None]:
        """Return the names of the files that an earlier process left, the oldest first; remove what it did not finish."""
        ages: dict[str, float] = {}
        for path in self._folder.iterdir():
            status = path.stat()
            if path.suffix == _SUFFIX and status.st_size == self.file_bytes:
                ages[path.stem] = status.st_mtime
            else:
                path.unlink(missing_ok=True)
        known = OrderedDict.fromkeys(sorted(ages, key=ages.__getitem__))
        while len(known) > self._max_files:
            (self._folder / (known.popitem(last=False)[0] + _SUFFIX)).unlink(missing_ok=True)
        return known

    def _remove(self, name: str) -> None:
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / (name + _SUFFIX)).unlink(missing_ok=True)

    def _name(self, key: bytes) -> str:
        return self._hash(b"name", key).hex()[:32]

    def _seal(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._seal_key, digest_size=SEAL_BYTES).digest()

    def _hash(self, purpose: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=purpose, digest_size=32).digest()


def _read_secret(path: Path) -> bytes:
    """Return the folder's secret, drawn by the first process that uses it; a broken one is drawn anew."""
    with contextlib.suppress(FileNotFoundError):
        secret = path.read_bytes()
        if len(secret) == _SECRET_BYTES:
            return secret
        path.unlink(missing_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(_SECRET_BYTES))
    with contextlib.suppress(FileExistsError):
        os.link(unfinished, path)  # of two processes, the first one's secret stays
    unfinished.unlink(missing_ok=True)
    return path.read_bytes()
