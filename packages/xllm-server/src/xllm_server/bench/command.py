"""The command `xllm-server bench`. Knows nothing of how the figures come about."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from xllm_server.bench.http_client import HttpFailure, Target
from xllm_server.bench.load import find_model, run_load
from xllm_server.bench.options import BenchOptions
from xllm_server.bench.prompts import make_prompts
from xllm_server.bench.report import as_table, make_report


def run_bench(arguments: Sequence[str]) -> int:
    """Run the command; return 0 when every request was answered, 1 when one failed, 2 for wrong usage."""
    import tyro

    options = tyro.cli(
        BenchOptions, prog="xllm-server bench", description="Drives an OpenAI server and measures it.", args=arguments
    )
    try:
        extra = _extra_body(options.extra_body)
        report = asyncio.run(measure(options, extra))
    except (HttpFailure, OSError, ValueError) as error:
        print(f"xllm-server bench: {error}", file=sys.stderr)
        return 2
    content = orjson.dumps(report, option=orjson.OPT_INDENT_2).decode()
    print(content if options.output == "-" else as_table(report))
    if options.output not in ("", "-"):
        Path(options.output).write_text(content + "\n", encoding="utf-8")
    return 0 if report["failed"] == 0 else 1


async def measure(options: BenchOptions, extra: dict[str, Any]) -> dict[str, Any]:
    """Run one benchmark and return its report.

    Raises:
        HttpFailure, OSError: the server cannot be asked for its models.
        ValueError: a count or length is not positive.
    """
    for name in ("num_prompts", "concurrency", "input_len", "output_len"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} must be at least 1.")
    target = Target.of(options.base_url, options.api_key or os.environ.get("OPENAI_API_KEY", ""))
    if not options.model:
        options = dataclasses.replace(options, model=await find_model(target))
    if options.warmup:
        await run_load(target, options, _prompts(options, options.warmup, f"warmup-{options.seed}"), extra)
    records, duration_s = await run_load(target, options, _prompts(options, options.num_prompts, options.seed), extra)
    return make_report(options, records, duration_s)


def _prompts(options: BenchOptions, count: int, seed: int | str) -> list[str]:
    return make_prompts(count, options.input_len, shared_prefix_len=options.shared_prefix_len, seed=seed)


def _extra_body(text: str) -> dict[str, Any]:
    content = orjson.loads(text) if text else {}
    if not isinstance(content, dict):
        raise ValueError("extra_body must be a JSON object.")
    return content
