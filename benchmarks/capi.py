"""What the C API adds to a request and to a streamed token, over the offline API of Python with the same model.

    python benchmarks/capi.py [--device null]

The script model computes nothing of use, but takes a millisecond of torch a step; with --device null a step takes nothing,
so that small differences a token show. Rounds of both sides alternate; each
figure is a median over all rounds, and what is added is the difference of the medians. Prints one table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

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
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
            LLM(model, **options) as llm,
        ):
            rounds = measure(process, llm, short, long, arguments)
    print_table(rounds)


def measure(
    process: subprocess.Popen[str], llm: LLM, short: str, long: str, arguments: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    """Return microseconds by (side, what); the first round of each side warms up and does not count."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(arguments.rounds + 1):
        process.stdin.write("\n")
        process.stdin.flush()
        requests, streams = (list(map(float, process.stdout.readline().split())) for _ in range(2))
        ours = [time_request(llm, short) for _ in range(arguments.requests)]
        our_streams = [time_stream(llm, long, arguments.tokens) for _ in range(arguments.streams)]
        if number:
            for key, values in (
                (("c", "request"), requests),
                (("c", "token"), streams),
                (("python", "request"), ours),
                (("python", "token"), our_streams),
            ):
                found.setdefault(key, []).extend(values)
    process.stdin.close()
    return found


def time_request(llm: LLM, prompt: str) -> float:
    """Return the microseconds of one request of one token."""
    start_s = time.perf_counter()
    llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    return 1e6 * (time.perf_counter() - start_s)


def time_stream(llm: LLM, prompt: str, max_tokens: int) -> float:
    """Return the microseconds a token of one stream."""
    num_tokens, end = 0, threading.Event()

    def on_output(output: RequestOutput) -> None:
        nonlocal num_tokens
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
    for what, title in (("request", "request of one token"), ("token", "streamed token")):
        python, c = (statistics.median(found[side, what]) for side in ("python", "c"))
        print(f"{title:28} {python:10.1f} {c:10.1f} {c - python:10.1f}   of {len(found['c', what])}")


if __name__ == "__main__":
    main()
