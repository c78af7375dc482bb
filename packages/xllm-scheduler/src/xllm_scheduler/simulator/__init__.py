"""Runs a trace through the real scheduler on a virtual clock. Knows nothing of models: steps only take time.

`python -m xllm_scheduler.simulator --trace FILE|tiny|poisson|bursty|agentic --policy P`
"""

from xllm_scheduler.simulator.compare import Setting, compare
from xllm_scheduler.simulator.decisions import DecisionLog
from xllm_scheduler.simulator.report import SimulationReport
from xllm_scheduler.simulator.simulation import simulate
from xllm_scheduler.simulator.synthetic import agentic_trace, bursty_trace, poisson_trace
from xllm_scheduler.simulator.trace import TINY, Trace, TraceRequest, load_trace, save_trace

__all__ = [
    "TINY",
    "DecisionLog",
    "Setting",
    "SimulationReport",
    "Trace",
    "TraceRequest",
    "agentic_trace",
    "bursty_trace",
    "compare",
    "load_trace",
    "poisson_trace",
    "save_trace",
    "simulate",
]
