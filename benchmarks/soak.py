"""Random requests against our server on the CPU for as long as told: every answer must end, be well formed and repeatable.

    python benchmarks/soak.py [--minutes 20] [--threads 1] [--model FILE] [--clients 12] [--num-blocks 200]

Requests differ in prompt, length, sampling, number of answers, log-probabilities, stop strings and streaming; some clients
leave in the middle. A small pool makes the server preempt. Every greedy prompt comes again and again and must get the same
answer, whoever shares its steps. Prints counts and the server's memory at the begin and the end; exits with 1 for an answer
that is wrong, a status other than 200, or memory that grows by more than a tenth after the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from peers.machine import process_tree
from peers.servers import RunningServer, xllm
from peers.weights import demo_file

from xllm_server.bench.http_client import HttpFailure, Target, events, request
from xllm_server.bench.prompts import make_prompts

REPEATED = 24
MAX_GROWTH = 1.1
ANSWER_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Soak:
    """What the clients share."""

    target: Target
    model: str
    end_s: float
    answers: dict[str, str] = field(default_factory=dict)
    """Of the greedy prompts that come again and again."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


async def client(soak: Soak, seed: int) -> None:
    """Send one request after the other until the end, or until anybody found a fault."""
    draw = random.Random(seed)
    while time.monotonic() < soak.end_s and not soak.faults:
        body = random_body(soak.model, draw)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await one_request(soak, body, draw)
        except (HttpFailure, OSError, ValueError, KeyError, TimeoutError) as error:
            soak.faults.append(f"{type(error).__name__}: {error} of {str(body)[:300]}")


async def one_request(soak: Soak, body: dict[str, Any], draw: random.Random) -> None:
    """Send one request, read its answer or leave in the middle, and check what came."""
    soak.counts["requests"] += 1
    if draw.random() < 0.1:
        soak.counts["left in the middle"] += 1
        await leave_early(soak.target, body, draw.randrange(1, 8))
        return
    if body["stream"]:
        chunks = [orjson.loads(event) async for event in events(soak.target, "/v1/completions", orjson.dumps(body))]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
    else:
        parts = [part async for part in request(soak.target, "/v1/completions", orjson.dumps(body))]
        choices = orjson.loads(b"".join(parts))["choices"]
    texts, reasons = {}, {}
    for choice in choices:
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
    if len(texts) != body["n"] or any(reason not in ("stop", "length") for reason in reasons.values()):
        soak.faults.append(f"finish reasons {reasons} of {str(body)[:300]}")
    if body["temperature"] == 0.0 and body["n"] == 1 and "stop" not in body:
        key = f"{body['prompt']}|{body['max_tokens']}"
        soak.counts["repeated"] += key in soak.answers
        if soak.answers.setdefault(key, texts[0]) != texts[0]:
            soak.faults.append(f"{soak.answers[key]!r} became {texts[0]!r} for {str(body)[:300]}")


async def leave_early(target: Target, body: dict[str, Any], num_events: int) -> None:
    """Close the connection after a few events."""
    stream = events(target, "/v1/completions", orjson.dumps(body | {"stream": True}))
    async with contextlib.aclosing(stream):
        async for _ in stream:
            num_events -= 1
            if num_events == 0:
                return


def random_body(model: str, draw: random.Random) -> dict[str, Any]:
    """Return the body of a request; a third are of the greedy ones that come again and again."""
    body: dict[str, Any] = {"model": model, "stream": draw.random() < 0.7, "n": 1, "ignore_eos": draw.random() < 0.5}
    if draw.random() < 0.34:
        number = draw.randrange(REPEATED)
        body |= {"prompt": make_prompts(1, 3 + 11 * number, seed=number)[0], "temperature": 0.0, "ignore_eos": True}
        return body | {"max_tokens": 8 + number}
    body |= {
        "prompt": make_prompts(1, draw.choice((1, 5, 30, 100, 400)), seed=draw.random())[0],
        "max_tokens": draw.choice((1, 2, 10, 40, 150)),
        "temperature": draw.choice((0.0, 0.7, 1.0, 1.5)),
        "top_p": draw.choice((1.0, 0.9, 0.3)),
        "top_k": draw.choice((0, 1, 5, 50)),
        "presence_penalty": draw.choice((0.0, 0.5)),
        "n": draw.choice((1, 1, 1, 3)),
        "seed": draw.randrange(1000),
    }
    if draw.random() < 0.2:
        body["logprobs"] = draw.randrange(5)
    if draw.random() < 0.2:
        body["stop"] = [" the", "\n"]
    return body


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process tree."""
    lines = [line for member in process_tree(pid) for line in Path(f"/proc/{member}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def run(server: RunningServer, minutes: float, num_clients: int) -> tuple[Soak, list[int]]:
    """Let the clients run; return what they saw and the server's memory at every quarter."""
    seconds = minutes * 60
    soak = Soak(Target.of(server.base_url), server.model, time.monotonic() + seconds)
    tasks = [asyncio.create_task(client(soak, seed)) for seed in range(num_clients)]
    memory = []
    for _ in range(4):
        await asyncio.wait(tasks, timeout=seconds / 4)
        memory.append(resident_bytes(server.pid))
    await asyncio.gather(*tasks)
    return soak, memory


def main() -> int:
    """Parse the command line, run, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a GGUF file; the demo model without it")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--num-blocks", type=int, default=200, help="blocks of the pool: few, so that they run out")
    options = parser.parse_args()
    contender = xllm(
        "soak",
        options.model or demo_file(),
        options.threads,
        "--num-blocks",
        str(options.num_blocks),
        "--check-integrity",
    )
    with RunningServer(contender) as server:
        soak, memory = asyncio.run(run(server, options.minutes, options.clients))
    print(f"{options.threads} threads, {options.minutes:g} minutes: {dict(soak.counts)}, {len(soak.faults)} faults")
    print("memory by quarters, MB: " + ", ".join(f"{size / 1e6:.0f}" for size in memory))
    print("\n".join(soak.faults[:5]))
    return 1 if soak.faults or memory[-1] > MAX_GROWTH * memory[0] else 0


if __name__ == "__main__":
    sys.exit(main())
