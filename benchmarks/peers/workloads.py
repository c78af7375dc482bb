"""The work that every server is given over HTTP, by the bench client of xllm-server. Knows nothing of who serves."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peers.servers import Contender, RunningServer
from xllm_server.bench.command import measure
from xllm_server.bench.options import BenchOptions

IN_PROCESS_DECODE = """
import sys, time, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), n_threads_batch=int(sys.argv[2]), verbose=False)
tokens = model.generate(list(range(100, 228)), temp=0.0, top_k=1)
next(tokens)
start = time.perf_counter()
for _ in range(127):
    next(tokens)
print(127 / (time.perf_counter() - start))
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work and the figure that it gives."""

    name: str
    unit: str
    measure: Callable[[RunningServer, int], float]
    """(server, number of the repetition, which seeds the prompts) -> figure."""

    def with_fresh_prompts(self, server: RunningServer, first_seed: int, stride: int) -> Callable[[], float]:
        """Return a run that takes other prompts each time, or a repeated one would find them in the server's cache."""
        seeds = itertools.count(first_seed, stride)
        return lambda: self.measure(server, next(seeds))


def decode_rate(server: RunningServer, repetition: int) -> float:
    """Return tokens a second of one request, prompt of 128, output of 128, the first token left out."""
    return 1000.0 / _report(server, repetition, 1, 1, 128, 128)["tpot_ms"]["p50"]


def first_token_ms(server: RunningServer, repetition: int) -> float:
    """Return milliseconds to the first token of a prompt of 512 that the server has not seen."""
    return float(_report(server, repetition, 1, 1, 512, 1)["ttft_ms"]["p50"])


def throughput(concurrency: int) -> Callable[[RunningServer, int], float]:
    """Return output tokens a second of `concurrency` requests at once, prompts of 128, outputs of 128."""

    def run(server: RunningServer, repetition: int) -> float:
        return float(_report(server, repetition, concurrency, concurrency, 128, 128)["output_tokens_per_s"])

    return run


WORKLOADS = (
    Workload("decode, 1 request", "tok/s", decode_rate),
    Workload("first token of 512", "ms", first_token_ms),
    Workload("8 at once", "tok/s", throughput(8)),
    Workload("32 at once", "tok/s", throughput(32)),
)


def fill_with_long_requests(server: RunningServer) -> None:
    """Let 32 sequences of 512 tokens run at once."""
    _report(server, 99, 32, 32, 384, 128)


def start_seconds(contender: Contender, environment: Mapping[str, str] | None = None) -> float:
    """Return the seconds from the start of the process to its first token over HTTP; the server is ended again."""
    start_s = time.perf_counter()
    with RunningServer(contender, environment) as server:
        _report(server, 0, 1, 1, 8, 1)
        return time.perf_counter() - start_s


def in_process_decode_rate(python: str, model: str, threads: int) -> float:
    """Return tokens a second of llama.cpp without any server."""
    command = [python, "-c", IN_PROCESS_DECODE, model, str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _report(
    server: RunningServer, seed: int, num_prompts: int, concurrency: int, input_len: int, output_len: int
) -> dict[str, Any]:
    options = BenchOptions(
        base_url=server.base_url,
        model=server.model,
        num_prompts=num_prompts,
        concurrency=concurrency,
        input_len=input_len,
        output_len=output_len,
        seed=1000 * concurrency + 10 * input_len + seed,
    )
    report = asyncio.run(measure(options, {}))
    if report["failed"]:
        raise SystemExit(f"{server.contender.name} failed {report['failed']} requests: {report['errors']}")
    return report
