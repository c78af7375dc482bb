"""What the scheduler decides on fixed traces, as text; `python tests/support/decision_cases.py` writes the golden files.

Write them anew only when decisions are meant to change, and read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.simulator import TINY, DecisionLog, Trace, load_trace, simulate

FOLDER = Path(__file__).parents[1] / "unit" / "scheduler" / "golden"

_MIXED = load_trace(FOLDER / "mixed.json")
"""Forty requests in a second, a fifth of them offline, the others with objectives that not all can meet."""
_AGENTS = load_trace(FOLDER / "agents.json")
"""Conversations with one system prompt, each turn with the whole of it so far, faster than they can be served."""


def _config(**options: Any) -> SchedulerConfig:
    return SchedulerConfig(**{"priority_strategy": "priority", "max_num_batched_tokens": 512} | options)


CASES: dict[str, tuple[Trace, int, SchedulerConfig]] = {
    "decode_first": (TINY, 400, _config()),
    "prefill_first": (TINY, 400, _config(policy="prefill_first")),
    "unified": (_MIXED, 200, _config(policy="unified", priority_strategy="multi_slo_and_prio")),
    "zero_evict": (_MIXED, 120, _config(enable_zero_evict=True, zero_evict_output_tokens=64)),
    "agents": (_AGENTS, 600, _config(max_prefill_chunk=128)),
    "agents_overlap": (_AGENTS, 600, _config(max_prefill_chunk=128, enable_schedule_overlap=True)),
}
"""Name -> trace, blocks, options."""


def decide(name: str) -> str:
    """Return the decisions of case `name`, and at its end what came of them."""
    trace, num_blocks, config = CASES[name]
    log = DecisionLog()
    report = simulate(trace, config, BlockManager(num_blocks, 16), LatencyModel(), host_s=0.0005, on_step=log.add)
    return f"{log.to_text()}{report.num_preemptions} preemptions, {report.num_met} of {report.num_online} in time\n"


if __name__ == "__main__":
    for case in CASES:
        (FOLDER / f"{case}.txt").write_text(decide(case), encoding="utf-8")
