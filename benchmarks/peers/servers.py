"""Starts our server and others' on one model, each with the same threads, and ends them. Knows nothing of measuring."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xllm_server.bench.http_client import HttpFailure, Target
from xllm_server.bench.load import find_model

START_TIMEOUT_S = 600
POLL_S = 0.02
CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Contender:
    """A server and the weights that it serves."""

    name: str
    """Unique; "xllm", "llama.cpp" or "vllm", then the weights: "xllm bf16"."""
    command: Sequence[str]
    """Without the port."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it is a server of this repository."""
        return self.name.startswith("xllm")


def xllm(weights: str, model: Path, threads: int, *options: str) -> Contender:
    """Return our server on `model`."""
    command = [sys.executable, "-m", "xllm_server", "--model", str(model), "--device", "cpu", "--log-level", "warning"]
    return Contender(f"xllm {weights}", [*command, "--threads", str(threads), *options])


def llama_cpp(weights: str, python: str, model: Path, threads: int) -> Contender:
    """Return llama-cpp-python's server on a GGUF file; it takes one request after the other."""
    command = [python, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", str(CONTEXT_TOKENS)]
    command += ["--n_threads", str(threads), "--n_threads_batch", str(threads), "--interrupt_requests", "False"]
    return Contender(f"llama.cpp {weights}", command)


def vllm(python: str, model: Path, threads: int) -> Contender:
    """Return vLLM's server for CPUs on a folder in Hugging Face layout, in bfloat16."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(CONTEXT_TOKENS)]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"}
    return Contender("vllm bf16", command, environment)


class RunningServer:
    """A contender that answers; use it as a context manager."""

    def __init__(self, contender: Contender, environment: Mapping[str, str] | None = None) -> None:
        self.contender = contender
        port = _free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            [*contender.command, "--port", str(port)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **contender.environment, **(environment or {})},
            start_new_session=True,
        )
        try:
            self.model = self._wait()
        except BaseException:
            self.__exit__()
            raise

    @property
    def pid(self) -> int:
        """Process id of the server; it may have children."""
        return self._process.pid

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _wait(self) -> str:
        """Wait for the first answer and return the served model's name."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                return asyncio.run(find_model(Target.of(self.base_url)))
            except (OSError, HttpFailure):
                time.sleep(POLL_S)
            if self._process.poll() is not None:
                break
        self._log.seek(0)
        raise SystemExit(f"{self.contender.name} did not start:\n{self._log.read()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
