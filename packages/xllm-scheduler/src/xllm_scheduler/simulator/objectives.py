"""Whether a sequence met its objectives. Knows nothing of how anyone aimed at them."""

from __future__ import annotations

from collections.abc import Sequence

from xllm_framework.config import SchedulerConfig
from xllm_framework.request import Request


def meets_objectives(request: Request, token_times_s: Sequence[float], config: SchedulerConfig) -> bool:
    """Return whether tokens at these times meet the request's objectives, or `config`'s where it brings none."""
    if not token_times_s:
        return False
    objectives = request.objectives
    first_s, last_s = token_times_s[0], token_times_s[-1]
    tpot_s = (last_s - first_s) / max(len(token_times_s) - 1, 1)
    measured_and_limits = (
        (first_s - request.arrival_time_s, objectives.ttft_slo_ms or config.default_ttft_slo_ms),
        (tpot_s, objectives.tpot_slo_ms or config.default_tpot_slo_ms),
        (last_s - request.arrival_time_s, objectives.ttlt_slo_ms),
    )
    return all(not limit_ms or 1e3 * seconds <= limit_ms for seconds, limit_ms in measured_and_limits)
