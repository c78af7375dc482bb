"""From options to a serving process and its exit code. Knows nothing of routes or of how a model is loaded.

The socket is bound first, so that a taken port costs no model load. Then the engine process is started, before anything
else is imported that takes long: what serving needs is imported while that process imports its own and loads the model.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from typing import TYPE_CHECKING

from xllm_framework.config import ServiceConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig, XLLMError
from xllm_runtime.log_format import configure_logging
from xllm_server.parsers.model_parsers import ModelParsers, check_parser_names
from xllm_server.tls import check_certificate

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster

EXIT_OK = 0
EXIT_ENGINE_DEAD = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
BACKLOG = 2048


def launch(config: XLLMConfig) -> int:
    """Load the model, serve until told to stop, and return the process's exit code.

    0 after SIGTERM or Ctrl-C, 1 when the engine died, 2 when the model or an option cannot be served.
    """
    configure_logging(config.service.log_level, config.service.log_format)
    try:
        check_parser_names(config.model)
        check_certificate(config.service)
        check_tracing(config.service)
        with bind(config.service) as listener:
            master = _load(config)
            return _serve(config, master, listener)
    except XLLMError as error:
        print(error.message, file=sys.stderr, flush=True)
        return EXIT_USAGE
    except KeyboardInterrupt:
        # Threads of a half-loaded model may still run; waiting for them is not what Ctrl-C asks for.
        os._exit(EXIT_INTERRUPTED)


def check_tracing(config: ServiceConfig) -> None:
    """Check that traces can be exported, if they are to be.

    Raises:
        InvalidConfig: OpenTelemetry is not installed.
    """
    wanted = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    if config.otlp_traces_endpoint and not all(map(_is_installed, wanted)):
        raise InvalidConfig('--otlp-traces-endpoint needs OpenTelemetry: pip install "xllm-server[otel]".')


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def bind(config: ServiceConfig) -> socket.socket:
    """Return a socket bound to `--host` and `--port` that does not listen yet.

    Raises:
        InvalidConfig: the address cannot be bound; the message names it.
    """
    if not 0 <= config.port <= 65535:
        raise InvalidConfig(f"The port of the address must be from 0 to 65535, not {config.port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfig(f"The address {config.host}:{config.port} is not valid: {error}.") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidConfig(f"The address {config.host}:{config.port} cannot be bound: {error}.") from error
    return listener


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL at which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _load(config: XLLMConfig) -> LLMMaster:
    from xllm_runtime.master.spawned_engine import SpawnedEngine

    engine = SpawnedEngine(config)
    import xllm_server.serve  # noqa: F401  while the engine process imports what it shares with the master
    from xllm_runtime.master import create_master

    master = create_master(config, engine_process=engine)
    ready = master.ready
    kind = " (the embedded demo model)" if not config.model.model else ""
    what = "prompts" if master.backend == "dit" else "contexts"
    print(
        f"Serving {master.model_name}{kind} on {ready.device} in {ready.dtype}, {ready.model_impl} implementation, "
        f"{what} up to {ready.max_model_len} tokens.",
        flush=True,
    )
    return master


def _serve(config: XLLMConfig, master: LLMMaster, listener: socket.socket) -> int:
    from xllm_server.serve import serve

    if master.backend == "dit":
        return serve(config.service, master, ModelParsers(), listener)
    template = master.chat_template.source if master.chat_template is not None else ""
    parsers = ModelParsers.choose(config.model, master.model_args.model_type, template)
    return serve(config.service, master, parsers, listener)
