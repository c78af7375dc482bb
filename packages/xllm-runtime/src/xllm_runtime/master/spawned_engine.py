"""Starts the process of the engine side, and holds on to it. Knows nothing of messages or of masters.

What is imported here is little, and must stay so: the process imports what it needs while its parent still imports its own,
and each finds compiled what the other came to first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from xllm_framework.config import XLLMConfig

if TYPE_CHECKING:
    from xllm_framework.model.source import ModelFiles

EXIT_TIMEOUT_S = 5.0
"""For a process that has closed its socket to end."""


class Handover(msgspec.Struct, frozen=True):
    """What the parent says first."""

    options: dict[str, object]
    """`XLLMConfig.to_flat()`."""
    socket_fd: int
    parent_pid: int


class SpawnedEngine:
    """A child process that loads the model that `config` names; messages with it go over `connection`.

    Raises:
        XLLMError: the model is not found; the process has been ended then.
    """

    def __init__(self, config: XLLMConfig) -> None:
        self.connection, childs_end = socket.socketpair()
        with childs_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "xllm_runtime.master.engine_process"],
                stdin=subprocess.PIPE,
                stdout=2,  # standard output belongs to the program around us
                pass_fds=[childs_end.fileno()],
                process_group=0,  # a Ctrl-C is the parent's to handle
            )
            self._hand_over(Handover(dict(config.to_flat()), childs_end.fileno(), os.getpid()))
        from xllm_framework.model.source import resolve_model

        try:
            self.files: ModelFiles = resolve_model(config.model.model, config.load)
        except BaseException:
            self.end(timeout_s=0.0)
            self.connection.close()
            raise
        self._hand_over(self.files)

    @property
    def pid(self) -> int:
        """Process id of the engine side."""
        return self._process.pid

    def end(self, timeout_s: float) -> None:
        """Wait for the process to end, as it does when told to or before it serves; kill it after `timeout_s`."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ending(self) -> str:
        """Say how the process ended; it has closed its connection already."""
        try:
            status = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if status >= 0:
            return f"has ended with exit status {status}"
        return f"was ended by {signal.Signals(-status).name}"

    def _hand_over(self, content: Handover | ModelFiles) -> None:
        """Write one line of JSON to the process's standard input; that it has died is for readers of `connection` to see."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(content, enc_hook=str) + b"\n")
            self._process.stdin.flush()
