"""Tokens a second with and without schedule overlap, on the real path, by turns in one run.

    python benchmarks/overlap.py [--model M] [--concurrency 8] [--rounds 6] [--check] [--set NAME=VALUE ...]

Two masters are made from the same options, one with `enable_schedule_overlap`, both with an engine process of their own as under the
server; they take turns, so that a machine that drifts drifts for both. The ratio is the median over rounds of neighbours; `--check` exits
with 1 if it is below 1.03. On a CPU give `--set threads=N` with fewer threads than cores: else overlap is left off, and both are the same.
"""

from __future__ import annotations

import argparse
import queue
import random
import statistics
import sys
import time
from typing import Any

from server_options import server_options

from xllm_framework.config import XLLMConfig
from xllm_framework.request import RequestOutput, SamplingParams
from xllm_runtime.master import LLMMaster

GOAL = 1.03
WARM_UP_TOKENS = 8


def run_round(master: LLMMaster, concurrency: int, num_tokens: int, seed: int) -> float:
    """Return tokens a second of `concurrency` requests of 32 prompt tokens, from the first token of the last one on."""
    draw = random.Random(seed)
    finished: queue.SimpleQueue[float] = queue.SimpleQueue()
    firsts: dict[str, float] = {}
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)

    def on_output(output: RequestOutput) -> None:
        firsts.setdefault(output.request_id, time.perf_counter())
        if output.finished:
            finished.put(time.perf_counter())

    for index in range(concurrency):
        prompt = [draw.randrange(100, 40000) for _ in range(32)]
        master.submit(master.prepare_completion(prompt, params, request_id=f"r{index}"), on_output)
    ends = [finished.get() for _ in range(concurrency)]
    return concurrency * (num_tokens - 1) / (max(ends) - max(firsts.values()))


def main() -> int:
    """Print both rates a round, and the median ratio."""
    parser = argparse.ArgumentParser(description="Tokens a second with and without schedule overlap.")
    parser.add_argument("--model", default="", help="empty is the embedded demo model")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100, help="tokens that each request generates")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of the server")
    options = parser.parse_args()
    flat: dict[str, Any] = {"model": options.model, **server_options(options.set)}
    masters = {
        is_on: LLMMaster.create(
            XLLMConfig.from_flat({**flat, "enable_schedule_overlap": is_on}, "command line"), engine_process=True
        )
        for is_on in (False, True)
    }
    ratios, rates = [], {False: [], True: []}
    try:
        for master in masters.values():
            run_round(master, options.concurrency, WARM_UP_TOKENS, seed=-1)
        for number in range(options.rounds):
            for is_on in (False, True) if number % 2 else (True, False):
                rates[is_on].append(run_round(masters[is_on], options.concurrency, options.tokens, seed=number))
            ratios.append(rates[True][-1] / rates[False][-1])
            print(
                f"off {rates[False][-1]:8.1f}  on {rates[True][-1]:8.1f} tokens/s  ratio {ratios[-1]:.3f}", flush=True
            )
    finally:
        for master in masters.values():
            master.close()
    print(
        f"median: off {statistics.median(rates[False]):.1f}, on {statistics.median(rates[True]):.1f} tokens/s, "
        f"ratio {statistics.median(ratios):.3f} (>= {GOAL}), worst {min(ratios):.3f}"
    )
    return int(options.check and statistics.median(ratios) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
