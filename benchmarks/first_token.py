"""Time to first token of a short request while long prompts are computed, beside the same request alone.

    python benchmarks/first_token.py [--model M] [--long 4] [--long-tokens N] [--short-tokens N] [--gap S] [--check] [--set NAME=VALUE ...]

The engine runs in this process, as in the offline API. For each repetition, fresh long prompts are submitted; once the first of
them is under way, short requests are sent one after the other, each at a random moment after the one before it. Prints the median and
the worst; `--check` exits with 1 if the median is more than three times the median alone. `--repetitions 0` sends no short requests.
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

GOAL = 3.0
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
LONG_HEAD_START_S = 0.3


class Client:
    """Sends prompts of random tokens, so that none is found in the prefix cache."""

    def __init__(self, master: LLMMaster, seed: int) -> None:
        self._master = master
        self._draw = random.Random(seed)
        self._number = 0

    def send(self, num_tokens: int) -> tuple[float, queue.SimpleQueue[float]]:
        """Submit a request; return when, and where the moment of its first token comes."""
        done: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._number += 1
        prompt = [self._draw.randrange(100, 40000) for _ in range(num_tokens)]

        def on_output(output: RequestOutput) -> None:
            if output.finished:
                done.put(time.perf_counter())

        prepared = self._master.prepare_completion(prompt, ONE_TOKEN, request_id=f"r{self._number}")
        start = time.perf_counter()
        self._master.submit(prepared, on_output)
        return start, done

    def ttft_s(self, num_tokens: int) -> float:
        """Return the seconds to the first token of one request."""
        start, done = self.send(num_tokens)
        return done.get() - start

    def wait_a_little(self, gap_s: float) -> None:
        """Sleep for a random time around `gap_s`, so that a request meets steps at every stage."""
        time.sleep(gap_s * self._draw.uniform(0.3, 1.7))


def measure(client: Client, options: argparse.Namespace) -> tuple[list[float], list[float], float]:
    """Return TTFTs alone, TTFTs beside long prompts, and the prompt tokens a second of the long ones meanwhile."""
    alone = [client.ttft_s(options.short_tokens) for _ in range(10)]
    start = time.perf_counter()
    long = [client.send(options.long_tokens)[1] for _ in range(options.long)]
    time.sleep(LONG_HEAD_START_S)
    beside = []
    while long[-1].empty() and len(beside) < options.repetitions:
        beside.append(client.ttft_s(options.short_tokens))
        client.wait_a_little(options.gap)
    is_over = not long[-1].empty()
    ends = [done.get() for done in long]
    if is_over and beside:
        beside.pop()  # it may have come after the long ones
    return alone, beside, options.long * options.long_tokens / (max(ends) - start)


def main() -> int:
    """Print the two medians and their ratio."""
    parser = argparse.ArgumentParser(description="TTFT of a short request while long prompts are computed.")
    parser.add_argument("--model", default="", help="empty is the embedded demo model")
    parser.add_argument("--long", type=int, default=4)
    parser.add_argument("--long-tokens", type=int, default=4000)
    parser.add_argument("--short-tokens", type=int, default=30)
    parser.add_argument("--repetitions", type=int, default=60, help="short requests at most")
    parser.add_argument("--gap", type=float, default=0.18, help="seconds between short requests, on average")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of the server")
    options = parser.parse_args()
    flat: dict[str, Any] = server_options(options.set)
    master = LLMMaster.create(XLLMConfig.from_flat({"model": options.model, **flat}), engine_process=False)
    try:
        client = Client(master, seed=0)
        client.ttft_s(options.short_tokens)
        alone, beside, rate = measure(client, options)
    finally:
        master.close()
    if not beside:
        print(f"{options.long} x {options.long_tokens} tokens at {rate:.0f} tokens/s, nothing beside them")
        return 0
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"alone   {1e3 * statistics.median(alone):7.1f} ms, worst {1e3 * max(alone):7.1f}, of {len(alone)}")
    print(f"beside  {1e3 * statistics.median(beside):7.1f} ms, worst {1e3 * max(beside):7.1f}, of {len(beside)}")
    print(f"ratio   {ratio:7.2f}  <= {GOAL}; {options.long} x {options.long_tokens} tokens at {rate:.0f} tokens/s")
    return int(options.check and ratio > GOAL)


if __name__ == "__main__":
    sys.exit(main())
