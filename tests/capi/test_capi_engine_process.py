"""The Python side: the session's protocol, the listener, hostile bytes, configuration."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capi.obedient_master import ObedientMaster
from xllm_capi.connection import Connection
from xllm_capi.engine import read_options, serve_host
from xllm_capi.generation import prepare, sampling_params
from xllm_capi.listener import Listener
from xllm_capi.messages import Cancel, Failed, Generate, Outputs, Ready, Shutdown, Start, Stats, StatsReply, ToHost
from xllm_capi.tool_chats import load_tool_chats
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest, XLLMError

DECODER = msgspec.msgpack.Decoder(ToHost)


def generate(request_id: int, **fields: Any) -> Generate:
    values: dict[str, Any] = dict.fromkeys(Generate.__struct_fields__)
    values |= {"priority": 0, "is_offline": False, "cache_salt": "", "id": request_id}
    sampling = msgspec.Raw(msgspec.msgpack.encode(fields.pop("sampling", {})))
    return Generate(**{**values, **fields, "sampling": sampling})


class Host:
    """The other end of a connection, as libxllm would be."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        stream.settimeout(20)

    def send(self, message: Any) -> None:
        frame = msgspec.msgpack.encode(message)
        self.stream.sendall(struct.pack("<I", len(frame)) + frame)

    def receive(self) -> Any:
        (size,) = struct.unpack("<I", self._read(4))
        return DECODER.decode(self._read(size))

    def outcome(self, request_id: int) -> tuple[str, str | None]:
        """Read until the request ends; return its text and the error's kind."""
        text = ""
        while True:
            message = self.receive()
            assert isinstance(message, Outputs)
            text += "".join(delta.text for delta in message.deltas if delta.id == request_id)
            for finished in message.finished:
                if finished.id == request_id:
                    return text, finished.kind

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self.stream.recv(size - len(received))
            if not part:
                raise EOFError
            received += part
        return received


@pytest.fixture
def engine():
    """A host, connected to an engine that runs in a thread; and what `serve_host` returned."""
    host_end, engine_end = socket.socketpair()
    codes: list[int] = []

    def serve() -> None:
        codes.append(serve_host(Connection(engine_end), ObedientMaster))

    thread = threading.Thread(target=serve)
    thread.start()
    yield Host(host_end), codes, thread
    host_end.close()
    thread.join(20)
    assert not thread.is_alive()


def test_session(engine) -> None:
    host, codes, thread = engine
    host.send(Start(1, "", '{"model_id": "named"}'))
    ready = host.receive()
    assert isinstance(ready, Ready)
    assert (ready.protocol_version, ready.model, ready.process_id) == (1, "named", os.getpid())
    host.send(generate(1, prompt="say a b"))
    assert host.outcome(1) == ("a b ", None)
    host.send(generate(2, prompt="count -1"))
    host.send(generate(3, prompt="say c " + "x " * 4000))
    assert host.outcome(3)[0].startswith("c x x ")
    host.send(Cancel([2, 99]))
    while True:
        message = host.receive()
        if any(finished.id == 2 for finished in message.finished):
            assert message.finished[0].kind == "cancelled"
            break
    host.send(Stats(7))
    reply = host.receive()
    assert isinstance(reply, StatsReply)
    assert (reply.id, reply.stats.num_running) == (7, 0)
    host.send(Shutdown())
    thread.join(20)
    assert codes == [0]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"prompt": ""}, "invalid_request"),
        ({"prompt": "x " * 5000}, "request_too_long"),
        ({"prompt": "full"}, "queue_full"),
        ({"prompt": "fail"}, "request_failed"),
        ({"prompt": "say x", "sampling": {"n": 0}}, "invalid_request"),
        ({"prompt": "say x", "response_format_json": "["}, "invalid_request"),
        ({"prompt": "count nonsense"}, "internal"),
    ],
)
def test_one_request_fails_alone(engine, fields: dict[str, Any], kind: str) -> None:
    host, _, _ = engine
    host.send(Start(1, "", ""))
    host.receive()
    host.send(generate(1, **fields))
    assert host.outcome(1)[1] == kind
    host.send(generate(2, prompt="say fine"))
    assert host.outcome(2) == ("fine ", None)


def test_engine_failure_is_told(engine) -> None:
    host, codes, thread = engine
    host.send(Start(1, "", ""))
    host.receive()
    host.send(generate(1, prompt="break"))
    assert host.outcome(1)[1] == "engine_dead"
    failed = host.receive()
    assert isinstance(failed, Failed)
    assert failed.kind == "engine_dead"
    thread.join(20)
    assert codes == [1]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (Start(2, "", ""), "protocol version"),
        (Stats(1), "protocol version"),
        (Start(1, "", "{"), "not valid JSON"),
        (Start(1, "", '{"nonsense": 1}'), "nonsense"),
        (Start(1, "missing", ""), "missing"),
    ],
)
def test_refused_start(engine, message: Any, part: str) -> None:
    host, codes, thread = engine
    host.send(message)
    failed = host.receive()
    assert isinstance(failed, Failed)
    assert part in failed.message
    thread.join(20)
    assert codes == [2]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=64), max_size=4))
def test_random_bytes_end_the_connection_alone(frames: list[bytes]) -> None:
    host_end, engine_end = socket.socketpair()
    with host_end, ThreadPoolExecutor(1) as pool:
        connection = Connection(engine_end)
        for frame in frames:
            host_end.sendall(struct.pack("<I", len(frame)) + frame)
        host_end.shutdown(socket.SHUT_WR)

        def read_all() -> None:
            try:
                while connection.receive() is not None:
                    pass
            except msgspec.DecodeError:
                pass

        pool.submit(read_all).result(20)
        connection.close()


def test_frame_beyond_the_limit_is_refused() -> None:
    host_end, engine_end = socket.socketpair()
    with host_end:
        host_end.sendall(struct.pack("<I", 0xFFFFFFFF))
        connection = Connection(engine_end)
        with pytest.raises(msgspec.DecodeError, match="limit"):
            connection.receive()
        connection.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
JSON_TEXT = st.text(max_size=40) | JSON.map(lambda value: msgspec.json.encode(value).decode())
CHAT_TEXT = JSON_TEXT | st.lists(
    st.fixed_dictionaries({"role": JSON, "content": JSON}, optional={"tool_calls": JSON}), max_size=3
).map(lambda value: msgspec.json.encode(value).decode())
SAMPLING_TEXT = JSON_TEXT | st.dictionaries(
    st.sampled_from(["max_tokens", "temperature", "logit_bias", "stop", "n", "seed"]), JSON, max_size=4
).map(lambda value: msgspec.json.encode(value).decode())


@settings(deadline=None, max_examples=300)
@given(SAMPLING_TEXT)
def test_any_sampling_json_is_an_answer_or_an_invalid_request(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        sampling_params(generate(1, prompt="say x", options_json=text))


@settings(deadline=None, max_examples=300)
@given(CHAT_TEXT, st.none() | JSON_TEXT)
def test_any_chat_json_is_an_answer_or_an_invalid_request(text: str, tools: str | None) -> None:
    master: Any = CHAT_MASTER
    with contextlib.suppress(InvalidRequest):
        prepare(master, generate(1, messages_json=text, tools_json=tools), load_chat_tools)


CHAT_MASTER = ObedientMaster(XLLMConfig())


@cache
def load_chat_tools() -> Any:
    return load_tool_chats(CHAT_MASTER)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=200)
@given(JSON_TEXT)
def test_any_engine_json_is_a_config_or_an_invalid_config(text: str) -> None:
    with contextlib.suppress(InvalidConfig):
        read_options("", text)


def test_model_wins_over_options() -> None:
    assert read_options("a", '{"model": "b", "block-size": 32}').model.model == "a"
    assert read_options("", '{"model": "b"}').model.model == "b"


def test_listener_serves_many_hosts_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "private" / "engine.sock"
    listener = Listener(f"unix:{path}")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidConfig, match="already"):
        Listener(str(path))
    reasons: list[str | None] = []
    master: Any = ObedientMaster(XLLMConfig())
    thread = threading.Thread(target=lambda: reasons.append(listener.serve(master, 1)))
    thread.start()
    hosts = []
    for _ in range(3):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(str(path))
        hosts.append(Host(stream))
    for host in hosts:
        host.send(Start(1, "", ""))
        assert isinstance(host.receive(), Ready)
    for host in hosts:
        host.send(generate(1, prompt="say same id"))
        assert host.outcome(1) == ("same id ", None)
    hosts[0].send(generate(2, prompt="count -1"))
    hosts[0].stream.close()
    while master.stats.num_running:
        threading.Event().wait(0.01)
    hosts[1].send(Stats(5))
    assert isinstance(hosts[1].receive(), StatsReply)
    for host in hosts[1:]:
        host.stream.close()
    listener.stop()
    thread.join(20)
    listener.close()
    assert reasons == [None]
    assert not path.exists()


def test_listener_replaces_a_stale_socket_only(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    Listener(str(path)).close()
    path.write_text("precious")
    with pytest.raises(InvalidConfig, match="no socket"):
        Listener(str(path))
    assert path.read_text() == "precious"
    with pytest.raises(XLLMError, match="cannot be made"):
        Listener(str(tmp_path / ("x" * 200)))


def test_command_line_refuses_a_wrong_option() -> None:
    command = [sys.executable, "-m", "xllm_capi.engine", "--listen", "/unused", "--options-json", '{"nonsense": 1}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr
