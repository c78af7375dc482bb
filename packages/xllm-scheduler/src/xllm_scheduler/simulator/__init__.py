"""Runs a trace through the real scheduler on a virtual clock. Knows nothing of models: steps only take time.

`python -m xllm_scheduler.simulator --trace FILE|tiny --policy P`
"""

from xllm_scheduler.simulator.report import SimulationReport
from xllm_scheduler.simulator.simulation import simulate
from xllm_scheduler.simulator.trace import TINY, Trace, TraceRequest, load_trace

__all__ = ["TINY", "SimulationReport", "Trace", "TraceRequest", "load_trace", "simulate"]
