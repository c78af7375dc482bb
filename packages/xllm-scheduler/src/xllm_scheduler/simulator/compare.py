"""What each feature gains on one trace, by running it with and without. Knows nothing of how features work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.simulator.report import SimulationReport
from xllm_scheduler.simulator.simulation import simulate
from xllm_scheduler.simulator.synthetic import SYNTHETIC, TraceShape
from xllm_scheduler.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class Setting:
    """All that a run depends on beside the trace."""

    config: SchedulerConfig
    latency: LatencyModel
    num_blocks: int
    block_size: int
    enable_prefix_cache: bool = True
    host_s: float = 0.0

    def run(self, trace: Trace) -> SimulationReport:
        """Simulate `trace`."""
        blocks = BlockManager(self.num_blocks, self.block_size, enable_prefix_cache=self.enable_prefix_cache)
        return simulate(trace, self.config, blocks, self.latency, host_s=self.host_s)


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature, the figure that it should improve, and how to switch it off and on."""

    name: str
    metric: str
    measure: Callable[[SimulationReport], float]
    off: dict[str, Any]
    on: dict[str, Any]
    claim: str
    """What the makers of the engine whose architecture this is say of it."""
    trace: str
    """Kind of the trace on which it should show, and ..."""
    shape: TraceShape
    """... its shape."""
    setting: dict[str, Any] = field(default_factory=dict)
    """Fields of `Setting` and of `SchedulerConfig` in both runs, on that trace."""
    why: str = ""
    """What there is to know about a gain that differs from the claim."""


_BY_ARRIVAL = {"priority_strategy": "fcfs"}
_UNCHUNKED = {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192, "policy": "prefill_first"}
_CHUNKED = {"enable_chunked_prefill": True, "max_num_batched_tokens": 1024}
_LONG_PROMPTS = TraceShape(rate=14, mean_prompt_tokens=1500, mean_output_tokens=64)
_LONG_OUTPUTS = TraceShape(rate=20, mean_prompt_tokens=128, mean_output_tokens=512)


def _mean_ttft_ms(report: SimulationReport) -> float:
    return 1e3 * float(np.mean(report.ttft_s))


FEATURES = (
    Feature(
        "chunked prefill, fcfs",
        "mean TTFT, ms",
        _mean_ttft_ms,
        {**_UNCHUNKED, **_BY_ARRIVAL},
        {**_CHUNKED, **_BY_ARRIVAL, "policy": "decode_first"},
        "-46 %",
        "poisson",
        _LONG_PROMPTS,
        {"num_blocks": 8192},
        why="By arrival, chunks compute the same tokens in more passes: a short prompt still waits for the long one before it.",
    ),
    Feature(
        "chunked prefill, sjf",
        "mean TTFT, ms",
        _mean_ttft_ms,
        {**_UNCHUNKED, "policy": "unified", "priority_strategy": "sjf"},
        {**_CHUNKED, "policy": "unified", "priority_strategy": "sjf"},
        "-46 %",
        "poisson",
        _LONG_PROMPTS,
        {"num_blocks": 8192},
        why="Once an order may use the cuts, short prompts pass; most of the gain over fcfs is the order's.",
    ),
    Feature(
        "chunked prefill, fair",
        "mean TTFT, ms",
        _mean_ttft_ms,
        {**_UNCHUNKED, **_BY_ARRIVAL},
        {**_CHUNKED, "policy": "decode_first", "priority_strategy": "fair"},
        "-46 %",
        "poisson",
        _LONG_PROMPTS,
        {"num_blocks": 8192},
        why="The defaults against whole prompts by arrival: chunks and order together.",
    ),
    Feature(
        "chunked prefill, fcfs",
        "p99 between tokens, ms",
        lambda report: 1e3 * float(np.percentile(report.itl_s, 99)),
        {**_UNCHUNKED, **_BY_ARRIVAL},
        {**_CHUNKED, **_BY_ARRIVAL, "policy": "decode_first"},
        "",
        "poisson",
        _LONG_PROMPTS,
        {"num_blocks": 8192},
    ),
    Feature(
        "zero-evict",
        "mean TPOT, ms",
        lambda report: 1e3 * float(np.mean(report.tpot_s)),
        {"enable_zero_evict": False},
        {"enable_zero_evict": True, "zero_evict_output_tokens": 2048},
        "-27 %",
        "poisson",
        _LONG_OUTPUTS,
        {"num_blocks": 512},
        why="Only where the assumed length covers the real ones; its price is the queue: TTFT and E2E rise.",
    ),
    Feature(
        "prefix cache",
        "mean E2E, ms",
        lambda report: 1e3 * float(np.mean(report.e2e_s)),
        {"enable_prefix_cache": False},
        {"enable_prefix_cache": True},
        "-10 %",
        "agentic",
        TraceShape(rate=4),
        {"num_blocks": 4096},
        why="Agents send the whole conversation again each time, so that more is found than in most traces.",
    ),
    Feature(
        "unified policy",
        "SLO attainment, %",
        lambda report: 100 * report.attainment,
        {"policy": "decode_first", "priority_strategy": "fcfs"},
        {"policy": "unified", "priority_strategy": "multi_slo_and_prio"},
        "more",
        "poisson",
        TraceShape(rate=60, ttft_slo_ms=500.0, tpot_slo_ms=30.0),
        {"num_blocks": 1024},
        why="Shows between saturation and overload; below everybody is in time, far above nobody.",
    ),
    Feature(
        "schedule overlap",
        "generated tokens/s",
        lambda report: report.tokens_per_s,
        {"enable_schedule_overlap": False},
        {"enable_schedule_overlap": True},
        "+17 %",
        "poisson",
        TraceShape(rate=60),
        {"num_blocks": 4096, "host_s": 0.0015},
        why="Hides the host's share of a step, which is assumed here; on a CPU that computes the model there is none to hide behind.",
    ),
)


def compare(base: Setting, trace: Trace | None, seed: int = 0) -> str:
    """Return a table of every feature's gain over `base`, on `trace`, or each on its own trace of this seed.

    Both runs of a line serve the same trace. What there is to know about each gain follows.
    """
    lines = [f"{'feature':<23}{'trace':<9}{'figure':<24}{'without':>9}{'with':>9}{'ratio':>7}{'change':>9}  claimed"]
    for feature in FEATURES:
        chosen, setting, name = trace, base, "given"
        if chosen is None:
            chosen, name = SYNTHETIC[feature.trace](feature.shape, seed), feature.trace
            setting = _changed(base, feature.setting)
        elif "host_s" in feature.setting and not base.host_s:
            setting = _changed(base, {"host_s": feature.setting["host_s"]})
        without, with_it = (
            feature.measure(_changed(setting, switch).run(chosen)) for switch in (feature.off, feature.on)
        )
        ratio = with_it / without if without else float("nan")
        lines.append(
            f"{feature.name:<23}{name:<9}{feature.metric:<24}{without:>9.2f}{with_it:>9.2f}{ratio:>7.3f}"
            f"{100 * (ratio - 1):>+8.1f} %  {feature.claim}"
        )
    lines += ["", *(f"{feature.name}: {feature.why}" for feature in FEATURES if feature.why)]
    return "\n".join(lines)


def _changed(setting: Setting, changes: dict[str, Any]) -> Setting:
    own = {name: value for name, value in changes.items() if name in Setting.__slots__}
    options = {name: value for name, value in changes.items() if name not in Setting.__slots__}
    return replace(setting, **own, config=replace(setting.config, **options))
