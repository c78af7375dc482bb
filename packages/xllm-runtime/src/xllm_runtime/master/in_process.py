"""The engine side as a thread of this process: messages are handed over as they are. Knows nothing of what they say."""

from __future__ import annotations

import queue
import threading
import weakref

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import EngineDead
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import EngineFailed, FromEngine, Shutdown, ToEngine
from xllm_runtime.master.constrained_requests import LoopMessage
from xllm_runtime.master.engine_client import OnMessage

EXIT_TIMEOUT_S = 2.0
"""How long the end of the interpreter waits for an engine that nobody has closed."""


class InProcessClient:
    """An `EngineClient` over a thread. The thread is a daemon: a step that never returns cannot keep the process alive."""

    def __init__(self, config: XLLMConfig, files: ModelFiles, on_message: OnMessage) -> None:
        self._config = config
        self._files = files
        self._on_message = on_message
        self._inbox: queue.SimpleQueue[LoopMessage] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="xllm-engine", daemon=True)
        self._thread.start()
        # A script that ends without close: what the thread holds must go before the modules that it comes from.
        weakref.finalize(self, _end, self._thread, self._inbox, EXIT_TIMEOUT_S)

    def send(self, message: ToEngine) -> None:
        """Put a message into the loop's inbox."""
        self._inbox.put(message)

    def redirect(self, on_message: OnMessage) -> None:
        """Change nothing: messages come on the thread that computes steps, which is not to do the front side's work."""

    def redirect_steps(self, on_message: OnMessage) -> None:
        """Call `on_message` from now on, on the thread that computes steps."""
        self._on_message = on_message

    def close(self, timeout_s: float) -> None:
        """End the thread; one that does not end within `timeout_s` is left behind."""
        _end(self._thread, self._inbox, timeout_s)

    def _emit(self, message: FromEngine) -> None:
        self._on_message(message)

    def _run(self) -> None:
        try:
            from xllm_runtime.master.selection import run_engine_side  # here, so that the front side imports no torch

            run_engine_side(self._config, self._files, self._inbox, self._emit)
        except BaseException as error:  # even a SystemExit of a plug-in must not leave the front side waiting
            self._on_message(
                EngineFailed(f"The engine's thread has ended: {type(error).__name__}: {error}", EngineDead.kind)
            )


def _end(thread: threading.Thread, inbox: queue.SimpleQueue[LoopMessage], timeout_s: float) -> None:
    inbox.put(Shutdown())
    if thread is not threading.current_thread():  # which a callback may be on
        thread.join(timeout_s)
