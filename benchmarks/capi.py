"""What the C API adds to a request and to a streamed token, over the offline API of Python with the same model.

    python benchmarks/capi.py [--device null]

The offline API runs its engine in this process; the C program's runs in a process of its own, on the other side of a
socket. The script model computes nothing of use, but takes a millisecond a step; with --device null a step takes a quarter
of that and all of it holds the interpreter's lock, which no model does: so small differences a token show. Rounds of both
sides alternate; each figure is a median over all rounds, and what is added is the difference of the medians. A token's way
is the time from the engine loop's handing it over to the callback that gets it. Prints one table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from capi_emissions import VARIABLE, engine_wrapper, note_emissions
from xllm_script_model import script, write_checkpoint

from xllm_capi.paths import compile_flags, link_flags
from xllm_framework.request import RequestOutput
from xllm_runtime import LLM, SamplingParams

OPTIONS = {"num_blocks": 256, "threads": 1, "enable_prefix_cache": False}
SOURCE = Path(__file__).with_name("capi_latency.cpp")


def main() -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=100, help="of one token, a round")
    parser.add_argument("--streams", type=int, default=5, help="a round")
    parser.add_argument("--tokens", type=int, default=200, help="of a stream")
    parser.add_argument("--device", default="cpu", choices=("cpu", "null"))
    arguments = parser.parse_args()
    options = {**OPTIONS, "device": arguments.device}
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_checkpoint(Path(folder) / "script"))
        program = Path(folder) / "capi_latency"
        subprocess.run(["c++", "-std=c++17", "-O2", SOURCE, *compile_flags(), *link_flags(), "-o", program], check=True)
        short, long = script("x"), script("x" * arguments.tokens)
        counts = (str(arguments.requests), str(arguments.streams), str(arguments.tokens))
        command = [program, model, json.dumps(options), short, long, *counts]
        emissions = Path(folder) / "emissions"
        python = str(engine_wrapper(Path(folder), sys.executable))
        environment = {**os.environ, "XLLM_PYTHON": python, VARIABLE: str(emissions)}
        ours: array[float] = array("d")
        note_emissions(ours)
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            ) as process,
            LLM(model, **options) as llm,
        ):
            found = Found(arguments.streams * arguments.tokens)
            measure(process, llm, short, long, arguments, found, emissions, ours)
    print_table(found.values)


class Found:
    """Microseconds by (side, what)."""

    def __init__(self, num_tokens: int) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}
        self._num_tokens = num_tokens

    def add(
        self, side: str, requests: list[float], streams: list[float], arrivals: list[float], emissions: array[float]
    ) -> None:
        """Add a round: `arrivals` in microseconds, `emissions` in seconds of the same clock, of all requests."""
        of_streams = emissions[-self._num_tokens :]
        ways = [arrival - 1e6 * emission for arrival, emission in zip(arrivals, of_streams, strict=True)]
        for what, values in (("request", requests), ("token", streams), ("way", ways)):
            self.values.setdefault((side, what), []).extend(values)


def measure(
    process: subprocess.Popen[str],
    llm: LLM,
    short: str,
    long: str,
    arguments: argparse.Namespace,
    found: Found,
    emissions: Path,
    ours: array[float],
) -> None:
    """Alternate rounds of both sides; the first of each warms up and does not count."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    for number in range(arguments.rounds + 1):
        emissions.write_bytes(b"")
        process.stdin.write("\n")
        process.stdin.flush()
        lines = [list(map(float, process.stdout.readline().split())) for _ in range(3)]
        theirs = read_emissions(emissions, arguments.streams * arguments.tokens)
        del ours[:]
        requests = [time_request(llm, short) for _ in range(arguments.requests)]
        arrivals: list[float] = []
        streams = [time_stream(llm, long, arguments.tokens, arrivals) for _ in range(arguments.streams)]
        if number:
            found.add("c", *lines, theirs)
            found.add("python", requests, streams, arrivals, ours)
    process.stdin.close()


def read_emissions(path: Path, num_tokens: int) -> array[float]:
    """Return the times in `path`, the last of which may be on their way still."""
    for _ in range(1000):
        times = array("d", path.read_bytes())
        if len(times) >= num_tokens:
            return times
        time.sleep(0.01)
    raise RuntimeError(f"The engine has noted {len(times)} tokens only.")


def time_request(llm: LLM, prompt: str) -> float:
    """Return the microseconds of one request of one token."""
    start_s = time.perf_counter()
    llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    return 1e6 * (time.perf_counter() - start_s)


def time_stream(llm: LLM, prompt: str, max_tokens: int, arrivals: list[float]) -> float:
    """Return the microseconds a token of one stream; append the monotonic microseconds at which each has come."""
    num_tokens, end = 0, threading.Event()

    def on_output(output: RequestOutput) -> None:
        nonlocal num_tokens
        arrivals.append(1e6 * time.monotonic())
        num_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
        if output.finished:
            end.set()

    start_s = time.perf_counter()
    llm.master.submit(
        llm.master.prepare_completion(prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens)), on_output
    )
    end.wait()
    return 1e6 * (time.perf_counter() - start_s) / num_tokens


def print_table(found: dict[tuple[str, str], list[float]]) -> None:
    """Print medians, and what C adds."""
    print(f"{'':28} {'Python':>10} {'C':>10} {'added':>10}   (us, medians)")
    titles = (("request", "request of one token"), ("token", "streamed token"), ("way", "way of a streamed token"))
    for what, title in titles:
        python, c = (statistics.median(found[side, what]) for side in ("python", "c"))
        print(f"{title:28} {python:10.1f} {c:10.1f} {c - python:10.1f}   of {len(found['c', what])}")


if __name__ == "__main__":
    main()
