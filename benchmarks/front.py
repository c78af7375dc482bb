"""What the HTTP front does under load, over a model that costs nothing: tokens a second, /health beside prompts, clients that drop.

    python benchmarks/front.py streams [--streams 64] [--tokens 400] [--rounds 3]
    python benchmarks/front.py health [--prompts 200] [--model FILE]
    python benchmarks/front.py drops [--streams 1000] [--rounds 3]

`streams` and `drops` serve the script model of tests/support, `health` the demo model on the CPU. The client runs in this process,
the server in its own two. Prints one table; exits with 1 where a bound of docs/reference/routes.md does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "support")]

from peers.servers import Contender, RunningServer, xllm
from peers.weights import demo_file
from prometheus_client.parser import text_string_to_metric_families
from soak import resident_bytes
from xllm_script_model import script, write_checkpoint

from xllm_server.bench.http_client import Target, events, request
from xllm_server.bench.prompts import make_prompts

HEALTH_PERIOD_S = 0.1
MIN_TOKENS_PER_S = 15_000
MAX_HEALTH_P99_S = 0.1
MAX_GROWTH = 1.1


async def metrics(target: Target) -> dict[str, float]:
    """Return the unlabelled metrics of a server."""
    text = b"".join([part async for part in request(target, "/metrics")]).decode()
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def stream(target: Target, body: dict[str, Any], take: int | None = None) -> int:
    """Read one stream, or its first `take` events and leave; return how many events came."""
    count = 0
    async for _ in events(target, "/v1/completions", orjson.dumps(body | {"stream": True})):
        count += 1
        if count == take:
            break
    return count


def body_of(num_tokens: int) -> dict[str, Any]:
    """Return a request of the script model for an answer of that many tokens, one byte each."""
    return {"prompt": script(b"x"), "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}


async def measure_streams(target: Target, options: argparse.Namespace) -> bool:
    """Print tokens a second of each round."""
    best = 0.0
    for number in range(options.rounds):
        before = await metrics(target)
        begin_s = time.perf_counter()
        await asyncio.gather(*(stream(target, body_of(options.tokens)) for _ in range(options.streams)))
        duration_s = time.perf_counter() - begin_s
        after = await metrics(target)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        num_tokens = grown["xllm:generation_tokens_total"]
        steps, front_s = grown["xllm:engine_steps_total"], grown["process_cpu_seconds_total"]
        best = max(best, num_tokens / duration_s)
        print(
            f"round {number + 1}: {num_tokens:.0f} tokens in {duration_s:.2f} s = {num_tokens / duration_s:.0f} tokens/s; "
            f"front {1e6 * front_s / num_tokens:.1f} us of processor a token; "
            f"{grown['xllm:engine_step_time_seconds_total'] / steps * 1e3:.2f} ms a step of {num_tokens / steps:.0f}"
        )
    return best >= MIN_TOKENS_PER_S


async def measure_health(target: Target, options: argparse.Namespace) -> bool:
    """Print percentiles of /health at 10 Hz while the prompts run."""
    prompts = make_prompts(options.prompts, options.prompt_words, seed="health")
    bodies = [orjson.dumps({"prompt": prompt, "max_tokens": 1, "stream": True}) for prompt in prompts]
    is_done = asyncio.Event()
    readings: list[float] = []

    async def probe() -> None:
        next_s = time.perf_counter()
        while not is_done.is_set():
            begin_s = time.perf_counter()
            _ = [part async for part in request(target, "/health")]
            readings.append(time.perf_counter() - begin_s)
            next_s = max(next_s + HEALTH_PERIOD_S, begin_s)
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))

    async def one(body: bytes) -> None:
        async for _ in events(target, "/v1/completions", body):
            pass

    probing = asyncio.create_task(probe())
    work = [asyncio.create_task(one(body)) for body in bodies]
    await asyncio.wait(work, timeout=options.seconds)
    num_done = sum(task.done() for task in work)
    for task in work:
        task.cancel()
    is_done.set()
    await probing
    p99 = statistics.quantiles(readings, n=100)[98]
    print(
        f"{num_done} of {len(work)} prompts answered; /health {len(readings)} times: "
        f"median {statistics.median(readings) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, max {max(readings) * 1e3:.1f} ms"
    )
    return p99 < MAX_HEALTH_P99_S


async def measure_drops(target: Target, options: argparse.Namespace, server: RunningServer) -> bool:
    """Open many streams and drop half of them, several times; print what is left behind."""
    sizes = []
    is_clean = True
    limit = asyncio.Semaphore(options.concurrency)

    async def one(number: int) -> None:
        async with limit:
            await stream(target, body_of(options.tokens), 5 if number % 2 else None)

    for number in range(options.rounds):
        await asyncio.gather(*map(one, range(options.streams)))
        values = await metrics(target)
        deadline_s = time.monotonic() + 10.0
        while not _is_idle(values) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
            values = await metrics(target)
        is_clean &= _is_idle(values)
        sizes.append(resident_bytes(server.pid))
        print(f"round {number + 1}: idle {_is_idle(values)}, {sizes[-1] / 2**20:.0f} MiB resident")
    return is_clean and sizes[-1] <= MAX_GROWTH * sizes[0]


def _is_idle(values: dict[str, float]) -> bool:
    held = values["xllm:kv_blocks"] - values["xllm:kv_blocks_free"] - values["xllm:kv_blocks_cached"]
    running = values["xllm:num_requests_running"] + values["xllm:num_requests_waiting"]
    return held == running == values["xllm:num_requests_in_flight"] == 0


def main() -> int:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "health", "drops"])
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--prompt-words", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--null", action="store_true", help="engine without any compute (--device null)")
    options = parser.parse_args()
    if options.what == "health":
        contender = xllm("demo", options.model or demo_file(), 1)
    else:
        options.streams = options.streams or {"streams": 64, "drops": 1000}[options.what]
        options.tokens = options.tokens or {"streams": 400, "drops": 40}[options.what]
        model = options.model or write_checkpoint(Path(tempfile.mkdtemp()) / "script-model")
        null = ("--device", "null") if options.null else ("--device", "cpu")
        command = [sys.executable, "-m", "xllm_server", "--model", str(model), "--threads", "1", *null]
        contender = Contender("xllm script", [*command, "--num-blocks", "8192", "--max-num-seqs", "1024"])
    with RunningServer(contender) as server:
        target = Target.of(server.base_url)
        measure = {"streams": measure_streams, "health": measure_health}.get(options.what)
        work = measure_drops(target, options, server) if measure is None else measure(target, options)
        return 0 if asyncio.run(work) else 1


if __name__ == "__main__":
    sys.exit(main())
