"""A real server in a process of its own, with the script model or any other, and a plain client for it.

Waits are bounded, never timed: `eventually` polls until something holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from xllm_script_model import write_checkpoint

START_TIMEOUT_S = 120.0
POLL_S = 0.02


@cache
def script_checkpoint() -> Path:
    """Return the folder of the script model, written once a test session."""
    return write_checkpoint(Path(tempfile.mkdtemp(prefix="xllm-script-")) / "script-model")


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until `holds()`; an assertion error after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(POLL_S)


class ServerProcess:
    """One server; use it as a context manager. Arguments are the command line's."""

    def __init__(self, *arguments: str, model: Path | None = None, api_key: str = "") -> None:
        command = [sys.executable, "-m", "xllm_server", "--model", str(model or script_checkpoint()), "--port", "0"]
        if "--num-blocks" not in arguments:
            command += ["--num-blocks", "1024"]
        if api_key:
            command += ["--api-key", api_key]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self.lines: list[str] = []
        self.base_url = self._wait_until_ready()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.client = httpx.Client(base_url=self.base_url, timeout=60, headers=headers)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    @property
    def model(self) -> str:
        """The served model's name."""
        return str(self.client.get("/v1/models").json()["data"][0]["id"])

    @property
    def errors(self) -> str:
        """What the process has written to standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        return self.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 200, **fields})

    def chat(self, content: Any, **fields: Any) -> httpx.Response:
        """POST /v1/chat/completions with one user message, or with the messages given."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, **fields})

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> httpx.Response:
        """POST raw bytes."""
        return self.client.post(path, content=body, headers={"Content-Type": content_type})

    def events(self, path: str, **fields: Any) -> list[Any]:
        """POST with `stream: true` and return the data of every event; `[DONE]` as it is."""
        with self.client.stream("POST", path, json={"stream": True, **fields}) as answer:
            assert answer.status_code == 200, answer.read()
            return [self.event(line) for line in answer.iter_lines() if line]

    def chat_events(self, content: Any, **fields: Any) -> list[Any]:
        """Stream a chat of one user message."""
        return self.events("/v1/chat/completions", messages=[{"role": "user", "content": content}], **fields)

    def completion_events(self, prompt: Any, **fields: Any) -> list[Any]:
        """Stream a completion."""
        return self.events("/v1/completions", prompt=prompt, **{"max_tokens": 200, **fields})

    @staticmethod
    def event(line: str) -> Any:
        """Return the data of one line of a stream."""
        assert line.startswith("data: "), line
        content = line.removeprefix("data: ")
        return content if content == "[DONE]" else json.loads(content)

    def hang_up_during(self, path: str, body: dict[str, Any], *, after_bytes: int = 0) -> None:
        """Send a request, read at least `after_bytes` bytes of the answer, and leave without a word."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        url = httpx.URL(self.base_url)
        with socket.create_connection((url.host, url.port or 80), timeout=30) as connection:
            connection.sendall(head.encode() + content)
            received = 0
            while received < after_bytes and (part := connection.recv(65536)):
                received += len(part)

    def raw(self, content: bytes) -> bytes:
        """Send bytes as they are; return what comes until the server closes, even if it resets the connection."""
        url, received = httpx.URL(self.base_url), b""
        with (
            socket.create_connection((url.host, url.port or 80), timeout=30) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.sendall(content)
            while part := connection.recv(65536):
                received += part
        return received

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics by name, labels other than the model's joined to it with commas."""
        values = {}
        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                labels = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
                values[",".join([sample.name, *labels])] = sample.value
        return values

    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits, and every block is free or only cached."""
        values = self.metrics()
        held = values["xllm:kv_blocks"] - values["xllm:kv_blocks_free"] - values["xllm:kv_blocks_cached"]
        waiting = values["xllm:num_requests_running"] + values["xllm:num_requests_waiting"]
        return held == 0 and waiting == 0 and values["xllm:num_requests_in_flight"] == 0

    def assert_alive(self) -> None:
        """Check that the server is healthy, idle again, and answers."""
        assert self.client.get("/health").status_code == 200
        eventually(self.is_idle)
        assert self.complete("ping", max_tokens=1).status_code == 200

    def engine_pid(self) -> int:
        """Return the process id of the engine: the server's one child."""
        task = Path(f"/proc/{self.process.pid}/task")
        children = [pid for entry in task.iterdir() for pid in (entry / "children").read_text().split()]
        assert len(children) == 1, children
        return int(children[0])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for the process's end and return its exit code."""
        return self.process.wait(timeout_s)

    def _wait_until_ready(self) -> str:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read() -> None:
            assert self.process.stdout is not None
            with contextlib.suppress(ValueError):  # closed under our hands at the end
                for line in self.process.stdout:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        while True:
            line = lines.get(timeout=START_TIMEOUT_S)
            if line is None:
                raise AssertionError(f"the server did not start: {self.errors}")
            self.lines.append(line)
            if line.startswith("Ready at "):
                return line.removeprefix("Ready at ").strip()


@contextlib.contextmanager
def running(task: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """Run `task` in a thread beside the block; afterwards `["result"]` or `["error"]` is set."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = task()
        except Exception as error:
            outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(60)
