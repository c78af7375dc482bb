"""Serves an app on a bound socket and ends well: signals, draining, the engine's death.

            first signal                      idle, or --shutdown-timeout
    serving ------------> draining (503 to new) ------------------------> closed, exit 0
       |                      `-- second signal: at once, exit 128 + signal
       `-- engine dead: in-flight requests get their error, /health says why -> closed, exit 1

Knows nothing of what the routes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from xllm_framework.config import ServiceConfig
from xllm_runtime.garbage import sparing_what_is_loaded
from xllm_server.app import build_app
from xllm_server.launch import BACKLOG, EXIT_ENGINE_DEAD, EXIT_OK, address_of
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.ports import Master
from xllm_server.state import ServerState

if TYPE_CHECKING:
    from xllm_server.tracing import RequestTracer

ENGINE_DEATH_NOTICE_S = 2.0
"""How long /health says why before the process exits, so that a probe can see it."""
CONNECTION_TIMEOUT_S = 2
"""For open connections to take the last bytes of their answers."""
FORCED_CLOSE_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class _UvicornServer(uvicorn.Server):
    """Uvicorn without its signal handling, which knows nothing of draining."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(config: ServiceConfig, master: Master, parsers: ModelParsers, listener: socket.socket) -> int:
    """Serve until a signal or the engine's death; close `master`; return the exit code."""
    with sparing_what_is_loaded():
        if sys.platform == "win32":
            return asyncio.run(_serve(config, master, parsers, listener))
        import uvloop

        return uvloop.run(_serve(config, master, parsers, listener))


async def _serve(config: ServiceConfig, master: Master, parsers: ModelParsers, listener: socket.socket) -> int:
    tracer = _tracer(config, master.model_name)
    state = ServerState.create(master, config, parsers, tracer)
    server = _UvicornServer(
        uvicorn.Config(
            build_app(state),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=CONNECTION_TIMEOUT_S,
            server_header=False,
            ssl_certfile=config.ssl_certfile or None,
            ssl_keyfile=config.ssl_keyfile or None,
        )
    )
    lifecycle = Lifecycle(state, server)
    lifecycle.watch()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    print(f"Ready at {address_of(listener, 'https' if config.ssl_certfile else 'http')}", flush=True)
    await serving
    state.executor.shutdown(wait=False, cancel_futures=True)
    await asyncio.get_running_loop().run_in_executor(None, master.close)
    if tracer is not None:
        await asyncio.get_running_loop().run_in_executor(None, tracer.close)
    return lifecycle.exit_code


def _tracer(config: ServiceConfig, model: str) -> RequestTracer | None:
    if not config.otlp_traces_endpoint:
        return None
    from xllm_server.tracing import RequestTracer, otlp_exporter

    return RequestTracer(otlp_exporter(config.otlp_traces_endpoint), model)


class Lifecycle:
    """See the module's drawing. Event loop only, except for what the engine's failure calls."""

    def __init__(self, state: ServerState, server: uvicorn.Server) -> None:
        self._state = state
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Task[None] | None = None
        self.exit_code = EXIT_OK

    def watch(self) -> None:
        """Listen for signals and for the engine's death."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._state.master.on_engine_failure(self._on_engine_failure)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._state.admission.is_draining:
            self._exit_now(128 + number)
            return
        self._state.admission.start_draining()
        if self._ending is None:
            self._ending = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        """Let running requests end, then stop serving."""
        timeout_s = self._state.config.shutdown_timeout
        if not await self._state.admission.wait_idle(timeout_s):
            logger.warning("Requests still ran after %g s; they are cut.", timeout_s)
            await self._loop.run_in_executor(None, self._state.master.close)
            await self._state.admission.wait_idle(CONNECTION_TIMEOUT_S)
        self._server.should_exit = True

    def _on_engine_failure(self, reason: str) -> None:
        """Called on the master's thread, after every request in flight got its error."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._end_after_failure, reason)

    def _end_after_failure(self, reason: str) -> None:
        logger.error("The engine is dead: %s", reason)
        self.exit_code = EXIT_ENGINE_DEAD
        if self._ending is not None:
            self._ending.cancel()
        self._ending = self._loop.create_task(self._stop_after_notice())

    async def _stop_after_notice(self) -> None:
        await asyncio.sleep(ENGINE_DEATH_NOTICE_S)
        await self._state.admission.wait_idle(CONNECTION_TIMEOUT_S)
        self._server.should_exit = True

    def _exit_now(self, exit_code: int) -> None:
        """End the process whatever still runs; the engine gets a moment to go first."""
        closing = threading.Thread(target=self._state.master.close, daemon=True)
        closing.start()
        closing.join(FORCED_CLOSE_TIMEOUT_S)
        os._exit(exit_code)
