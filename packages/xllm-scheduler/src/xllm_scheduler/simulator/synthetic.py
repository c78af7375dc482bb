"""Traces made up from a seed. Knows nothing of how they are served.

The same seed gives the same trace on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from xllm_scheduler.simulator.trace import Trace, TraceRequest

_MAX_PROMPT_TOKENS = 8192
_MAX_OUTPUT_TOKENS = 1024


class TraceShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a synthetic trace looks like."""

    num_requests: int = 200
    rate: float = 4.0
    """Requests a second, on average."""
    mean_prompt_tokens: int = 512
    mean_output_tokens: int = 128
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    offline_share: float = 0.0
    """Share of the requests that nobody waits for; they all arrive at the start."""


def poisson_trace(shape: TraceShape, seed: int) -> Trace:
    """Independent requests at exponential intervals; lengths are log-normal, most short and a few long."""
    random = np.random.default_rng(seed)
    return _trace(shape, random, np.cumsum(random.exponential(1 / shape.rate, shape.num_requests)))


def bursty_trace(shape: TraceShape, seed: int) -> Trace:
    """The same, but intervals vary much (gamma, shape 0.2): bursts of several requests, then silence."""
    random = np.random.default_rng(seed)
    return _trace(shape, random, np.cumsum(random.gamma(0.2, 5 / shape.rate, shape.num_requests)))


def agentic_trace(shape: TraceShape, seed: int) -> Trace:
    """Agents with one system prompt that call the model again and again, each time with the whole conversation so far.

    A turn adds tool results and the output before it; the next follows after two seconds on average.
    """
    random = np.random.default_rng(seed)
    system_tokens = 2 * shape.mean_prompt_tokens
    requests: list[TraceRequest] = []
    start_s, agent = 0.0, 0
    while len(requests) < shape.num_requests:
        start_s += float(random.exponential(6 / shape.rate))
        arrival_s, conversation_tokens = start_s, 0
        for _ in range(min(int(random.integers(3, 10)), shape.num_requests - len(requests))):
            conversation_tokens += _length(random, shape.mean_prompt_tokens // 4, _MAX_PROMPT_TOKENS)
            output_tokens = _length(random, shape.mean_output_tokens // 2, _MAX_OUTPUT_TOKENS)
            requests.append(
                TraceRequest(
                    arrival_s=round(arrival_s, 6),
                    prompt_tokens=system_tokens + conversation_tokens,
                    output_tokens=output_tokens,
                    system_tokens=system_tokens,
                    prefix_group=f"agent {agent}",
                    prefix_tokens=conversation_tokens,
                    ttft_slo_ms=shape.ttft_slo_ms,
                    tpot_slo_ms=shape.tpot_slo_ms,
                )
            )
            conversation_tokens += output_tokens
            arrival_s += float(random.exponential(2.0))
        agent += 1
    return Trace(sorted(requests, key=lambda request: request.arrival_s))


SYNTHETIC: dict[str, Callable[[TraceShape, int], Trace]] = {
    "poisson": poisson_trace,
    "bursty": bursty_trace,
    "agentic": agentic_trace,
}
"""By the name that `--trace` takes."""


def _trace(shape: TraceShape, random: np.random.Generator, arrivals_s: np.ndarray) -> Trace:
    requests = []
    for arrival_s in arrivals_s.tolist():
        is_offline = bool(random.random() < shape.offline_share)
        requests.append(
            TraceRequest(
                arrival_s=0.0 if is_offline else round(arrival_s, 6),
                prompt_tokens=_length(random, shape.mean_prompt_tokens, _MAX_PROMPT_TOKENS),
                output_tokens=_length(random, shape.mean_output_tokens, _MAX_OUTPUT_TOKENS),
                offline=is_offline,
                ttft_slo_ms=0.0 if is_offline else shape.ttft_slo_ms,
                tpot_slo_ms=0.0 if is_offline else shape.tpot_slo_ms,
            )
        )
    return Trace(requests)


def _length(random: np.random.Generator, mean: int, largest: int) -> int:
    """Return a log-normal length with this mean, of which the standard deviation is about 1.3 times as large."""
    sigma = 1.0
    return int(np.clip(round(random.lognormal(np.log(max(mean, 1)) - sigma * sigma / 2, sigma)), 1, largest))
