"""The README's examples really answer: its curl command, its openai client, and the programs in examples/."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
README = [(kind, body) for kind, body in FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))]
DEFAULT_PORT = "127.0.0.1:8000"


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_block(language: str, word: str) -> str:
    (body,) = [body for kind, body in README if kind == language and word in body]
    return body


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where `xllm-server`, started without a model's name, answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [str(Path(sys.executable).parent / "xllm-server"), "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("Ready"):
            break
    yield f"127.0.0.1:{port}"
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    server.stdout.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_example(address: str) -> None:
    command = find_block("bash", "curl").replace(DEFAULT_PORT, address)
    answer = json.loads(run(["sh", "-c", command]))
    assert "Earth" in answer["choices"][0]["message"]["content"]


def test_openai_example(address: str) -> None:
    program = find_block("python", "OpenAI").replace(DEFAULT_PORT, address)
    assert "Earth" in run([sys.executable, "-c", program])


def test_offline_example() -> None:
    assert "Paris" in run([sys.executable, "-c", find_block("python", "from xllm_runtime")])


@pytest.mark.parametrize("name", ["offline_chat.py", "offline_batch.py"])
def test_offline_program(name: str) -> None:
    assert run([sys.executable, str(ROOT / "examples" / name)]).strip()


def test_client_program(address: str) -> None:
    environment = {**os.environ, "XLLM_BASE_URL": f"http://{address}/v1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "many_streams.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 4
