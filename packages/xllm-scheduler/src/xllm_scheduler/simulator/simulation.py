"""The loop on a virtual clock: arrivals, schedule, a step that only takes time, update. Knows nothing of devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from xllm_framework.batch import BatchGroup, ForwardOutput
from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import Request, StoppingChecker
from xllm_framework.request.messages import SequenceDelta
from xllm_scheduler.latency import LatencyModel, StepShape
from xllm_scheduler.scheduler import Scheduler
from xllm_scheduler.simulator.report import SimulationReport
from xllm_scheduler.simulator.trace import Trace

_MAX_MODEL_LEN = 1 << 30


def simulate(
    trace: Trace, config: SchedulerConfig, block_manager: BlockManager, latency: LatencyModel
) -> SimulationReport:
    """Serve `trace` to its end; deterministic.

    `block_manager` must be unused. Every generated token is 0.
    """
    simulation = _Simulation(trace, config, block_manager, latency)
    return simulation.run()


class _Simulation:
    def __init__(
        self, trace: Trace, config: SchedulerConfig, block_manager: BlockManager, latency: LatencyModel
    ) -> None:
        requests = [item.to_request(number) for number, item in enumerate(trace.requests)]
        self._arrivals = deque(sorted(requests, key=lambda request: request.arrival_time_s))
        self._requests = {request.request_id: request for request in requests}
        self._blocks = block_manager
        self._latency = latency
        self._now_s = 0.0
        self._scheduler = Scheduler(
            config, block_manager, StoppingChecker((), _MAX_MODEL_LEN), clock=lambda: self._now_s
        )
        self._token_times: dict[tuple[str, int], list[float]] = {}
        self._report = SimulationReport(num_blocks=block_manager.num_usable_blocks)

    def run(self) -> SimulationReport:
        while self._arrivals or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._now_s = max(self._now_s, self._arrivals[0].arrival_time_s)
            self._add(self._arrived())
            group = self._scheduler.schedule()
            self._report.peak_blocks = max(self._report.peak_blocks, self._blocks.num_allocated_blocks)
            outputs = self._execute(group)
            for delta in self._scheduler.update(group, outputs):
                self._record(delta)
        return self._finished_report()

    def _arrived(self) -> Iterable[Request]:
        while self._arrivals and self._arrivals[0].arrival_time_s <= self._now_s:
            yield self._arrivals.popleft()

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._scheduler.add_request(request)

    def _execute(self, group: BatchGroup) -> list[ForwardOutput]:
        if group.is_empty:
            return []
        self._now_s += max(self._latency.step_s(StepShape.of(batch)) for batch in group.batches)
        return [ForwardOutput(np.zeros(sum(item.is_sampled for item in batch), np.int32)) for batch in group.batches]

    def _record(self, delta: SequenceDelta) -> None:
        times = self._token_times.setdefault((delta.request_id, delta.index), [])
        times.extend([self._now_s] * len(delta.token_ids))
        if delta.finish_reason is None:
            return
        report, arrival_s = self._report, self._requests[delta.request_id].arrival_time_s
        if delta.error is not None:
            report.num_failed += 1
            return
        report.e2e_s.append(self._now_s - arrival_s)
        if times:
            report.ttft_s.append(times[0] - arrival_s)
            intervals = np.diff(times).tolist()
            report.itl_s.extend(intervals)
            if intervals:
                report.tpot_s.append(sum(intervals) / len(intervals))

    def _finished_report(self) -> SimulationReport:
        report, stats = self._report, self._scheduler.stats()
        report.duration_s = self._now_s
        report.num_steps = stats.num_steps
        report.num_prompt_tokens = stats.num_prompt_tokens
        report.num_generated_tokens = stats.num_generated_tokens
        report.num_preemptions = stats.num_preemptions
        report.prefix_cache_hit_rate = stats.prefix_cache_hits / max(stats.prefix_cache_queries, 1)
        return report
