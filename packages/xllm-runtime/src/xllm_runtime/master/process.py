"""The engine side as a process of its own, so that JSON and text work never delays a step.

One socket pair carries msgpack both ways; its end of file is how each side learns that the other is gone. Knows nothing
of what the messages say.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from xllm_framework.errors import EngineDead
from xllm_framework.request.messages import EngineFailed, FromEngine, Shutdown, ToEngine
from xllm_runtime.master.engine_client import OnMessage
from xllm_runtime.master.spawned_engine import SpawnedEngine
from xllm_runtime.master.wire import encode_frame, read_messages


class ProcessClient:
    """An `EngineClient` over a child process, with one thread that sends and one that receives."""

    def __init__(self, engine: SpawnedEngine, on_message: OnMessage) -> None:
        self._engine = engine
        self._on_message = on_message
        self._is_closing = False
        self._outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._send_all, name="xllm-send", daemon=True),
            threading.Thread(target=self._receive_all, name="xllm-receive", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Process id of the engine side."""
        return self._engine.pid

    def send(self, message: ToEngine) -> None:
        """Queue a message for the sending thread."""
        self._outbox.put(message)

    def redirect(self, on_message: OnMessage) -> None:
        """Call `on_message` from now on, on the receiving thread, which has nothing else to do."""
        self._on_message = on_message

    def redirect_steps(self, on_message: OnMessage) -> None:
        """Change nothing: the receiving thread computes no steps."""

    def close(self, timeout_s: float) -> None:
        """Let the process end after its step, or kill it after `timeout_s`; then wait for it."""
        self._is_closing = True
        self._outbox.put(Shutdown())
        self._outbox.put(None)
        self._engine.end(timeout_s)
        for thread in self._threads:
            if thread is not threading.current_thread():  # which a callback may be on
                thread.join()
        self._engine.connection.close()

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._engine.connection.sendall(encode_frame(message))

    def _receive_all(self) -> None:
        has_failed = False
        for message in read_messages(self._engine.connection, FromEngine):
            has_failed |= isinstance(message, EngineFailed)
            self._on_message(message)
        if not (has_failed or self._is_closing):
            self._on_message(EngineFailed(f"The engine process {self._engine.ending()}.", EngineDead.kind))
