"""The server as a process: what it prints, how it ends, what wrong models and ports say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from xllm_script_model import SLOW, script

from support.server_process import ServerProcess, eventually, script_checkpoint
from support.shared_servers import small_server


def start_that_fails(*arguments: str) -> str:
    """Run a server that must not start; return the one sentence that it says."""
    command = [sys.executable, "-m", "xllm_server", *arguments, "--log-level", "error"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert result.stdout == ""
    return lines[0]


def test_models_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert str(missing) in start_that_fails("--model", str(missing), "--port", "0")
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in start_that_fails(str(tmp_path), "--port", "0")


def test_a_taken_port_is_named_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in start_that_fails("--model", str(script_checkpoint()), "--port", port)


def test_it_says_what_it_serves_and_where(server: ServerProcess) -> None:
    serving, ready = server.lines
    assert serving.startswith("Serving script-model on cpu")
    assert ready.startswith("Ready at http://127.0.0.1:")


def stream(base_url: str, first_token: threading.Event) -> list[Any]:
    """Stream an answer of half a minute; return its events, up to wherever it ends."""
    body = {"prompt": script(SLOW, *[b"x"] * 20), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    events = []
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line:
                events.append(ServerProcess.event(line))
                first_token.set()
    return events


def test_a_killed_engine_ends_everything() -> None:
    with ServerProcess() as process, ThreadPoolExecutor(2) as pool:
        first_token = threading.Event()
        streamed = pool.submit(stream, process.base_url, first_token)
        whole = pool.submit(process.complete, script(SLOW, b"y"), max_tokens=3000, ignore_eos=True)
        assert first_token.wait(30)
        eventually(lambda: process.metrics()["xllm:num_requests_in_flight"] == 2)
        os.kill(process.engine_pid(), signal.SIGKILL)
        *_, last = streamed.result()
        assert last["error"]["code"] == "engine_dead"
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "engine_dead"
        health = process.client.get("/health")
        assert health.status_code == 503
        assert "SIGKILL" in health.json()["reason"]
        assert process.complete("x").status_code == 503
        assert process.wait() == 1


def test_what_outlives_the_shutdown_timeout_is_cut_with_an_error() -> None:
    with ServerProcess("--shutdown-timeout", "0.5") as process, ThreadPoolExecutor(1) as pool:
        first_token = threading.Event()
        streamed = pool.submit(stream, process.base_url, first_token)
        assert first_token.wait(30)
        engine = process.engine_pid()
        process.signal(signal.SIGTERM)
        *_, last = streamed.result()
        assert last["error"]["code"] == "shutting_down"
        assert process.wait() == 0
        assert not Path(f"/proc/{engine}").exists()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, is_streamed: bool) -> None:
    before = server.metrics()
    body = {"prompt": script(SLOW, b"x"), "max_tokens": 3000, "ignore_eos": True, "stream": is_streamed}
    server.hang_up_during("/v1/completions", body, after_bytes=300 if is_streamed else 0)
    eventually(server.is_idle)
    after = server.metrics()
    assert after["xllm:generation_tokens_total"] - before["xllm:generation_tokens_total"] < 2000


def test_a_request_that_waits_too_long_is_given_up() -> None:
    process = small_server()
    with ThreadPoolExecutor(1) as pool:
        body = {"max_tokens": 60, "ignore_eos": True}
        running = pool.submit(process.complete, script(SLOW, SLOW, *[b"x"] * 30), **body)
        eventually(lambda: process.metrics()["xllm:num_requests_running"] == 1)
        late = process.complete("y" * 150, max_tokens=1, timeout=0.05)
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "deadline_exceeded"
        assert "retry-after" in late.headers
        assert running.result().status_code == 200
    process.assert_alive()
