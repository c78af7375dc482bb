"""A `BlockArchive` on files: a thread of its own writes and reads, so that no step waits for a disk. Knows nothing of sequences.

The loop's thread asks (`accepts`, `holds`, `claim`, `fetch`), the worker's gives (`put`); what they share is a few dictionaries behind
one lock, which is never held over an access to a file.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from xllm_runtime.memory.block_files import BlockFiles

MAX_WAITING_BYTES = 64 * 2**20
"""Payloads that wait to be written; more are not kept."""
MAX_FETCHED_BYTES = 256 * 2**20
"""Payloads that were fetched and are kept for whoever comes for them; at least one prompt's."""
FIRST_BYTES_PER_S = 500e6
"""What reading is thought to give before it was measured."""
_SMOOTHING = 0.3
_CLOSE_TIMEOUT_S = 5.0
_FETCH, _WRITE, _CLOSE = range(3)
"""In the order in which they are done: somebody waits for what is fetched."""


class FileArchive:
    """See `BlockArchive`.

    Args:
        files: used by the archive's thread alone from now on.
        payload_bytes: of each block.
    """

    def __init__(self, files: BlockFiles, payload_bytes: int) -> None:
        self.prefix_secret = files.prefix_secret
        """See `BlockFiles.prefix_secret`."""
        self._files = files
        self._payload_bytes = payload_bytes
        self._max_waiting = max(1, MAX_WAITING_BYTES // payload_bytes)
        self._max_fetched = max(1, MAX_FETCHED_BYTES // payload_bytes)
        self._seconds_a_block = payload_bytes / FIRST_BYTES_PER_S
        self._lock = threading.Lock()
        self._announced: set[bytes] = set()
        """Keys that were accepted and are not written yet."""
        self._fetched: OrderedDict[bytes, bytes] = OrderedDict()
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="xllm-archive", daemon=True)
        self._thread.start()

    @property
    def seconds_a_block(self) -> float:
        """See `BlockArchive.seconds_a_block`."""
        return self._seconds_a_block

    def accepts(self, key: bytes) -> bool:
        """See `BlockArchive.accepts`."""
        with self._lock:
            if key in self._announced or len(self._announced) >= self._max_waiting or key in self._files:
                return False
            self._announced.add(key)
            return True

    def put(self, key: bytes, payload: bytes) -> None:
        """Take the payload of a key that was accepted; it is written later. From the worker's thread."""
        self._enqueue(_WRITE, lambda: self._write(key, payload))

    def holds(self, key: bytes) -> bool:
        """See `BlockArchive.holds`."""
        with self._lock:
            return key in self._fetched or key in self._files

    def claim(self, key: bytes) -> bytes | None:
        """See `BlockArchive.claim`."""
        with self._lock:
            payload = self._fetched.get(key)
            if payload is not None:
                self._fetched.move_to_end(key)
            return payload

    def fetch(self, keys: list[bytes], limit_s: float, on_end: Callable[[], None]) -> None:
        """See `BlockArchive.fetch`; the first key that cannot be had ends it, for those behind it are of no use then."""
        deadline_s = time.monotonic() + limit_s
        self._enqueue(_FETCH, lambda: self._fetch(keys, deadline_s, on_end))

    def close(self) -> None:
        """Write what waits, as far as that goes in a few seconds, and end the thread; a second call does nothing."""
        self._enqueue(_CLOSE, None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _enqueue(self, kind: int, job: Callable[[], None] | None) -> None:
        self._jobs.put((kind, next(self._numbers), job))

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            job()

    def _write(self, key: bytes, payload: bytes) -> None:
        self._files.write(key, payload)
        with self._lock:
            self._announced.discard(key)

    def _fetch(self, keys: list[bytes], deadline_s: float, on_end: Callable[[], None]) -> None:
        try:
            for key in keys[: self._max_fetched]:
                if time.monotonic() >= deadline_s or not self._fetch_one(key):
                    break
        finally:
            on_end()

    def _fetch_one(self, key: bytes) -> bool:
        """Read one payload into memory, unless it is there; return whether it is now."""
        with self._lock:
            if key in self._fetched:
                self._fetched.move_to_end(key)
                return True
        start_s = time.perf_counter()
        payload = self._files.read(key)
        if payload is None:
            return False
        self._seconds_a_block += _SMOOTHING * (time.perf_counter() - start_s - self._seconds_a_block)
        with self._lock:
            self._fetched[key] = payload
            while len(self._fetched) > self._max_fetched:
                self._fetched.popitem(last=False)
        return True
