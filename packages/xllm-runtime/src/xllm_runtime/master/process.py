"""The engine side as a process of its own, so that JSON and text work never delays a step.

One socket pair carries msgpack both ways; its end of file is how each side learns that the other is gone. Knows nothing
of what the messages say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading

import msgspec

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import EngineDead
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import EngineFailed, FromEngine, Shutdown, ToEngine
from xllm_runtime.master.engine_client import OnMessage
from xllm_runtime.master.engine_process import Handover
from xllm_runtime.master.wire import encode_frame, read_messages

logger = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 5.0
"""For a process that has closed its socket to end."""


class ProcessClient:
    """An `EngineClient` over a child process, with one thread that sends and one that receives."""

    def __init__(self, config: XLLMConfig, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._is_closing = False
        self._outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._connection, childs_end = socket.socketpair()
        with childs_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "xllm_runtime.master.engine_process"],
                stdin=subprocess.PIPE,
                stdout=2,  # standard output belongs to the program around us
                pass_fds=[childs_end.fileno()],
                process_group=0,  # a Ctrl-C is the parent's to handle
            )
            self._hand_over(Handover(dict(config.to_flat()), childs_end.fileno(), os.getpid()))
        self._threads = [
            threading.Thread(target=self._send_all, name="xllm-send", daemon=True),
            threading.Thread(target=self._receive_all, name="xllm-receive", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Process id of the engine side."""
        return self._process.pid

    def load(self, files: ModelFiles) -> None:
        """Tell the process where the model lies."""
        self._hand_over(files)

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
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():  # which a callback may be on
                thread.join()
        self._connection.close()

    def _hand_over(self, content: Handover | ModelFiles) -> None:
        """Write one line of JSON to the process's standard input; a process that has died is `_receive_all`'s to notice."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(content, enc_hook=str) + b"\n")
            self._process.stdin.flush()

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.sendall(encode_frame(message))

    def _receive_all(self) -> None:
        has_failed = False
        for message in read_messages(self._connection, FromEngine):
            has_failed |= isinstance(message, EngineFailed)
            self._on_message(message)
        if not (has_failed or self._is_closing):
            self._on_message(EngineFailed(f"The engine process {self._ending()}.", EngineDead.kind))

    def _ending(self) -> str:
        """Say how the process ended."""
        try:
            status = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if status >= 0:
            return f"has ended with exit status {status}"
        return f"was ended by {signal.Signals(-status).name}"
