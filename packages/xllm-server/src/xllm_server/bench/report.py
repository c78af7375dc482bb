"""From request records to figures, and to a table of them. Knows nothing of how they were measured.

TTFT: sent to first token. ITL: between events of one answer. TPOT: (last - first token) / (tokens - 1). E2E: sent to end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from xllm_server.bench.load import RequestRecord
from xllm_server.bench.options import BenchOptions

PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one value, linear between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(values_s: Sequence[float]) -> dict[str, float] | None:
    """Return mean, percentiles and maximum of durations, in milliseconds; None without any."""
    if not values_s:
        return None
    summary = {"mean": sum(values_s) / len(values_s)}
    summary |= {f"p{percent}": percentile(values_s, percent) for percent in PERCENTILES}
    summary["max"] = max(values_s)
    return {name: round(value * 1000, 3) for name, value in summary.items()}


def make_report(options: BenchOptions, records: Sequence[RequestRecord], duration_s: float) -> dict[str, Any]:
    """Return the figures of a run as JSON-ready values; times in milliseconds, rates a second."""
    good = [record for record in records if record.error is None]
    prompt_tokens = sum(record.prompt_tokens for record in good)
    output_tokens = sum(_num_tokens(record) for record in good)
    return {
        "endpoint": options.endpoint,
        "model": options.model,
        "num_prompts": options.num_prompts,
        "concurrency": options.concurrency,
        "request_rate": options.request_rate or None,
        "input_len": options.input_len,
        "output_len": options.output_len,
        "seed": options.seed,
        "completed": len(good),
        "failed": len(records) - len(good),
        "errors": sorted({record.error for record in records if record.error is not None})[:5],
        "duration_s": round(duration_s, 4),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(record.cached_tokens for record in good),
        "output_tokens": output_tokens,
        "requests_per_s": round(len(good) / duration_s, 4),
        "output_tokens_per_s": round(output_tokens / duration_s, 2),
        "total_tokens_per_s": round((prompt_tokens + output_tokens) / duration_s, 2),
        "ttft_ms": summarise([record.token_times_s[0] - record.start_s for record in good]),
        "itl_ms": summarise([gap for record in good for gap in _gaps(record.token_times_s)]),
        "tpot_ms": summarise([_time_per_token(record) for record in good if _num_tokens(record) > 1]),
        "e2e_ms": summarise([record.end_s - record.start_s for record in good]),
    }


def as_table(report: dict[str, Any]) -> str:
    """Return the report for people."""
    lines = [
        f"{report['completed']} of {report['num_prompts']} requests in {report['duration_s']:.2f} s, "
        f"{report['failed']} failed; concurrency {report['concurrency']}",
        f"{'tokens':<8} prompt {report['prompt_tokens']} (cached {report['cached_tokens']}), "
        f"output {report['output_tokens']}",
        f"{'rates':<8} {report['requests_per_s']:.2f} requests/s, {report['output_tokens_per_s']:.1f} output tokens/s, "
        f"{report['total_tokens_per_s']:.1f} tokens/s",
        "",
        "".join(f"{name:>12}" for name in ("ms", "mean", *(f"p{percent}" for percent in PERCENTILES), "max")),
    ]
    for name in ("ttft", "itl", "tpot", "e2e"):
        summary = report[f"{name}_ms"]
        if summary is not None:
            lines.append(f"{name.upper():>12}" + "".join(f"{value:>12.2f}" for value in summary.values()))
    lines += [f"error: {error}" for error in report["errors"]]
    return "\n".join(lines)


def _num_tokens(record: RequestRecord) -> int:
    """Return the generated tokens: by `usage`, or by events where the server reports none."""
    return record.completion_tokens or len(record.token_times_s)


def _gaps(times_s: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times_s)]


def _time_per_token(record: RequestRecord) -> float:
    return (record.token_times_s[-1] - record.token_times_s[0]) / (_num_tokens(record) - 1)
