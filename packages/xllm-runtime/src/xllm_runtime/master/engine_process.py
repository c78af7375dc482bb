"""The engine side as a process: `python -m xllm_runtime.master.engine_process`, started by `SpawnedEngine` only.

Standard input brings two lines of JSON: a `Handover`, then the `ModelFiles`. All else goes over the inherited socket.
Knows nothing of users: it takes no signals from the terminal, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading

import msgspec

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import XLLMError
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import EngineReady, FromEngine, Shutdown, ToEngine
from xllm_runtime.garbage import spare_what_is_loaded
from xllm_runtime.log_format import configure_logging
from xllm_runtime.master.constrained_requests import LoopMessage
from xllm_runtime.master.outbox import Outbox
from xllm_runtime.master.spawned_engine import Handover
from xllm_runtime.master.wire import read_messages


def main() -> int:
    """Serve until the parent says so or is gone; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent drains, then ends this process
    handover = msgspec.json.decode(sys.stdin.buffer.readline(), type=Handover)
    threading.Thread(target=_end_with_parent, args=(handover.parent_pid,), daemon=True).start()
    os.set_inheritable(handover.socket_fd, False)
    connection = socket.socket(fileno=handover.socket_fd)
    config = XLLMConfig.from_flat(handover.options, "the handover to the engine process")
    configure_logging(config.service.log_level, config.service.log_format)
    from xllm_runtime.master.selection import import_likely_engine_side, run_engine_side

    with contextlib.suppress(XLLMError):  # said again once the parent listens
        import_likely_engine_side(config.model.backend)  # while the parent finds the model
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    files = msgspec.json.decode(line, type=ModelFiles, dec_hook=lambda kind, text: kind(text))  # kind: Path
    inbox: queue.SimpleQueue[LoopMessage] = queue.SimpleQueue()
    outbox = Outbox(connection)
    threading.Thread(target=_receive, args=(connection, inbox), name="xllm-receive", daemon=True).start()
    outbox.start()

    def emit(message: FromEngine) -> None:
        outbox.put(message)
        if isinstance(message, EngineReady):
            spare_what_is_loaded()

    run_engine_side(config, files, inbox, emit)
    outbox.close()
    return 0


def _receive(connection: socket.socket, inbox: queue.SimpleQueue[LoopMessage]) -> None:
    """Fill the inbox until the parent says `Shutdown`; end at once when it is gone without a word."""
    for message in read_messages(connection, ToEngine):
        inbox.put(message)
        if isinstance(message, Shutdown):
            return
    os._exit(1)


def _end_with_parent(parent_pid: int) -> None:
    """End this process when its parent has ended, also where a fork of the parent keeps the socket open."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        parent = os.pidfd_open(parent_pid)
    except OSError:
        os._exit(1)
    if os.getppid() != parent_pid:
        os._exit(1)
    select.select([parent], [], [])
    os._exit(1)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # everything is closed and sent; tearing the interpreter and its libraries down takes long
