"""The engine process behind libxllm: `python -m xllm_capi.engine`. Knows nothing of C; see `messages` for what it speaks.

Two ways to run it. libxllm starts it with `--fd`, one end of a socket pair, and it serves that one host and ends with it.
A person starts it with `--listen PATH`, and any number of hosts of the same user attach to the socket at PATH.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from xllm_capi.connection import Connection
from xllm_capi.messages import PROTOCOL_VERSION, Failed, Start
from xllm_capi.session import Session
from xllm_framework.config import XLLMConfig, load_config
from xllm_framework.errors import InvalidConfig, XLLMError

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster

logger = logging.getLogger(__name__)
CreateMaster = Callable[[XLLMConfig], "LLMMaster"]
SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while another one has tokens to send; Python's default is ten times that."""
_PR_SET_PDEATHSIG = 1


def create_master(config: XLLMConfig) -> LLMMaster:
    """Load the model in this process; raises XLLMError."""
    from xllm_runtime.master import LLMMaster
    from xllm_runtime.master import create_master as create

    master = create(config, engine_process=False)
    if isinstance(master, LLMMaster):  # a recommender is none
        master.call_back_from_steps()  # a session's callbacks never wait
    return master


def main(argv: Sequence[str] | None = None, create: CreateMaster = create_master) -> NoReturn:
    """Run the process until its host leaves or it is told to end; exit codes: 0 done, 1 engine failed, 2 cannot start."""
    arguments = _parse(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if arguments.listen is not None:
        code = _listen(arguments, create)
    else:
        _tie_to_host(arguments.host_pid)
        os.closerange(arguments.fd + 1, os.sysconf("SC_OPEN_MAX"))
        code = serve_host(Connection(socket.socket(fileno=arguments.fd)), create)
    sys.stderr.flush()
    # Not sys.exit: nothing is left to save, and tearing a loaded model's libraries down takes long.
    os._exit(code)


def serve_host(connection: Connection, create: CreateMaster) -> int:
    """Load what the host's first message asks for and serve it alone; return the exit code."""
    try:
        message = connection.receive()
        if message is None:
            connection.close()
            return 0
        config = read_start(message)
        master = create(config)
    except (XLLMError, msgspec.DecodeError) as error:
        kind = error.kind if isinstance(error, XLLMError) else InvalidConfig.kind
        connection.send(Failed(kind, str(error)))
        connection.close()
        return 2
    with ThreadPoolExecutor(config.service.num_request_handling_threads, "xllm-capi-prepare") as pool:
        session = Session(connection, master, pool)
        master.on_engine_failure(session.fail)
        session.run()
    reason = master.health()
    master.close()
    return 0 if reason is None else 1


def read_start(message: object) -> XLLMConfig:
    """Return the configuration that a host's first message asks for.

    Raises:
        InvalidConfig: it is no `Start` of this protocol version, or an option in it is wrong.
    """
    if not isinstance(message, Start) or message.protocol_version != PROTOCOL_VERSION:
        raise InvalidConfig(
            f"This engine speaks protocol version {PROTOCOL_VERSION}, the host another one: libxllm and the Python "
            "package xllm_capi must come from the same installation."
        )
    return read_options(message.model, message.options_json)


def read_options(model: str, options_json: str) -> XLLMConfig:
    """Return the configuration of a JSON object ("" holds nothing) over the environment's; `model`, if any, wins.

    Raises:
        InvalidConfig: it is no JSON object, or an option in it is wrong.
    """
    try:
        options = json.loads(options_json or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"options_json is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise InvalidConfig("options_json must be a JSON object of option names and values.")
    values: dict[str, Any] = load_config({}).to_flat(only_changed=True)
    values |= {name.replace("-", "_"): value for name, value in options.items()}
    if model:
        values["model"] = model
    return XLLMConfig.from_flat(values, "the engine's options")


def _listen(arguments: argparse.Namespace, create: CreateMaster) -> int:
    from xllm_capi.listener import Listener

    try:
        config = read_options(arguments.model, arguments.options_json)
        listener = Listener(arguments.listen)
        try:
            master = create(config)
        except XLLMError:
            listener.close()
            raise
    except XLLMError as error:
        print(error.message, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: listener.stop())
    print(f"Engine of {master.model_name} listens at {listener.path}", file=sys.stderr, flush=True)
    reason = listener.serve(master, config.service.num_request_handling_threads)
    if reason is None:
        master.drain(config.service.shutdown_timeout)
    listener.close()
    master.close()
    return 0 if reason is None else 1


def _tie_to_host(host_pid: int) -> None:
    """Have the kernel kill this process when the host's thread that started it ends, and leave if that has happened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if host_pid and os.getppid() != host_pid:
        os._exit(0)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m xllm_capi.engine", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="serve one host over this descriptor, a Unix stream socket")
    where.add_argument("--listen", metavar="PATH", help="serve hosts that attach to a new Unix socket at PATH")
    parser.add_argument("--host-pid", type=int, default=0, help="with --fd: the host's process id")
    parser.add_argument("--model", default="", help="with --listen: model folder, file or hub id")
    parser.add_argument("--options-json", default="", help="with --listen: a JSON object of further options")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
