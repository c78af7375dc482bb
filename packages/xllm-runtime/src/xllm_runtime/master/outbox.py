"""What the engine process says to its parent: in order, without ever making the loop wait. Knows nothing of what it means."""

from __future__ import annotations

import queue
import socket
import threading

import msgspec

from xllm_framework.request.messages import StepOutputs
from xllm_runtime.master.wire import encode_frame

MAX_DIRECT_DELTAS = 4
"""Sequences of a step up to which its outputs are encoded and sent on the loop's thread: some 30 us, less than waking
another thread takes, which moreover gets the interpreter only once the next step computes on all cores."""


class Outbox:
    """Sends small steps' outputs at once, as long as the socket takes them and nothing waits; the rest by a thread.

    `put` may be called on any thread. A parent that is gone is noticed by who reads from it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames: queue.SimpleQueue[bytes | msgspec.Struct | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while anything is put in order."""
        self._num_waiting = 0
        """Frames that the thread has still to send, the one that it sends now included."""
        self._thread = threading.Thread(target=self._run, name="xllm-send", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, message: msgspec.Struct) -> None:
        """Send `message` behind all before it; does not wait."""
        frame: bytes | msgspec.Struct = message
        is_small = isinstance(message, StepOutputs) and len(message.deltas) <= MAX_DIRECT_DELTAS
        with self._lock:
            if is_small and not self._num_waiting:
                encoded = encode_frame(message)
                num_sent = self._send_now(encoded)
                if num_sent == len(encoded):
                    return
                frame = encoded[num_sent:]
            self._num_waiting += 1
            self._frames.put(frame)

    def close(self) -> None:
        """Return when everything is sent, or the parent is gone."""
        self._frames.put(None)
        self._thread.join()

    def _send_now(self, frame: bytes) -> int:
        """Return how many bytes the socket took without waiting; all of them where nobody will read any."""
        try:
            return self._connection.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)

    def _run(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                self._connection.sendall(frame if isinstance(frame, bytes) else encode_frame(frame))
                with self._lock:
                    self._num_waiting -= 1
        except OSError:
            return
