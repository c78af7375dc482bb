"""Sends the requests of a run, so many at once or so many a second, and notes when each token came.

Knows nothing of statistics.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from xllm_server.bench.http_client import HttpFailure, Target, events, request
from xllm_server.bench.options import BenchOptions


@dataclass(slots=True)
class RequestRecord:
    """One request: clock readings in seconds, counts by the server's `usage`."""

    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    """When each event with text arrived; an event may hold more than one token."""
    end_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


async def find_model(target: Target) -> str:
    """Return the first model that the server lists.

    Raises:
        HttpFailure: it lists none.
    """
    content = b"".join([part async for part in request(target, "/v1/models")])
    models = orjson.loads(content).get("data") or []
    if not models:
        raise HttpFailure("The server lists no model; give --model.")
    return str(models[0]["id"])


async def run_load(
    target: Target, options: BenchOptions, prompts: Sequence[str], extra: dict[str, Any]
) -> tuple[list[RequestRecord], float]:
    """Send one request a prompt; return the records in the order in which they began, and the seconds that all took."""
    slots = asyncio.Semaphore(options.concurrency)
    gaps = random.Random(f"arrivals-{options.seed}")
    start_s = time.perf_counter()

    async def one(prompt: str) -> RequestRecord:
        async with slots:
            return await _send(target, options, prompt, extra)

    tasks = []
    next_s = start_s
    for prompt in prompts:
        if options.request_rate > 0:
            await asyncio.sleep(next_s - time.perf_counter())
            next_s += gaps.expovariate(options.request_rate)
        tasks.append(asyncio.create_task(one(prompt)))
    records = await asyncio.gather(*tasks)
    return records, time.perf_counter() - start_s


async def _send(target: Target, options: BenchOptions, prompt: str, extra: dict[str, Any]) -> RequestRecord:
    path, body = _request_of(options, prompt, extra)
    record = RequestRecord(time.perf_counter())
    try:
        async with asyncio.timeout(options.timeout_s):
            async for content in events(target, path, body):
                _note(record, orjson.loads(content), time.perf_counter())
                if record.error is not None:
                    break
        if not record.token_times_s and record.error is None:
            record.error = "No token came."
    except (HttpFailure, OSError, TimeoutError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"[:300]
    record.end_s = time.perf_counter()
    return record


def _note(record: RequestRecord, content: dict[str, Any], now_s: float) -> None:
    """Take one event of a stream into the record."""
    if content.get("error"):
        record.error = str(content["error"])[:300]
        return
    usage = content.get("usage")
    if usage:
        record.prompt_tokens = usage["prompt_tokens"]
        record.completion_tokens = usage["completion_tokens"]
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in content.get("choices") or ():
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            record.token_times_s.append(now_s)


def _request_of(options: BenchOptions, prompt: str, extra: dict[str, Any]) -> tuple[str, bytes]:
    """Return path and body of the request for `prompt`."""
    body: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.output_len,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.endpoint == "chat":
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "/v1/completions", prompt
    return path, orjson.dumps(body | extra)
