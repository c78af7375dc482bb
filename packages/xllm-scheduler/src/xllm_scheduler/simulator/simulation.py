"""The loop on a virtual clock: arrivals, schedule, a step that only takes time, update. Knows nothing of devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from xllm_framework.batch import BatchGroup, ForwardOutput
from xllm_framework.config import SchedulerConfig
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import Request, StoppingChecker
from xllm_framework.request.messages import SequenceDelta
from xllm_scheduler.latency import LatencyModel, StepShape
from xllm_scheduler.scheduler import Scheduler
from xllm_scheduler.simulator.objectives import meets_objectives
from xllm_scheduler.simulator.report import SimulationReport, StepSample
from xllm_scheduler.simulator.trace import Trace

_MAX_MODEL_LEN = 1 << 30


@dataclass(frozen=True, slots=True)
class _PlannedStep:
    group: BatchGroup
    outputs: list[ForwardOutput]
    device_s: float


def simulate(
    trace: Trace,
    config: SchedulerConfig,
    block_manager: BlockManager,
    latency: LatencyModel,
    *,
    knows_latency: bool = True,
    host_s: float = 0.0,
    on_step: Callable[[BatchGroup], None] | None = None,
) -> SimulationReport:
    """Serve `trace` to its end; deterministic. Every generated token is 0.

    Args:
        block_manager: must be unused.
        latency: how long steps take.
        knows_latency: whether the scheduler plans with `latency`; or with the file that `config` names, or without.
        host_s: seconds of host work a step: beside the device's with `enable_schedule_overlap`, else before it.
        on_step: called with each step before it runs.
    """
    simulation = _Simulation(trace, config, block_manager, latency, knows_latency)
    simulation.host_s, simulation.on_step = host_s, on_step
    return simulation.run_overlapped() if config.enable_schedule_overlap else simulation.run()


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        config: SchedulerConfig,
        block_manager: BlockManager,
        latency: LatencyModel,
        knows_latency: bool,
    ) -> None:
        requests = [item.to_request(number) for number, item in enumerate(trace.requests)]
        self.host_s = 0.0
        self.on_step: Callable[[BatchGroup], None] | None = None
        self._arrivals = deque(sorted(requests, key=lambda request: request.arrival_time_s))
        self._requests = {request.request_id: request for request in requests}
        self._config = config
        self._blocks = block_manager
        self._latency = latency
        self._now_s = 0.0
        self._scheduler = Scheduler(
            config,
            block_manager,
            StoppingChecker((), _MAX_MODEL_LEN),
            latency=latency if knows_latency else None,
            clock=lambda: self._now_s,
        )
        self._token_times: dict[tuple[str, int], list[float]] = {}
        self._report = SimulationReport(num_blocks=block_manager.num_usable_blocks)

    def run(self) -> SimulationReport:
        while self._arrivals or self._scheduler.has_work:
            self._add_arrived()
            step = self._plan()
            if not step.group.is_empty:
                self._now_s += self.host_s + step.device_s
            self._finish(step)
        return self._finished_report()

    def run_overlapped(self) -> SimulationReport:
        in_flight = _PlannedStep(BatchGroup(()), [], 0.0)
        while self._arrivals or self._scheduler.has_work or not in_flight.group.is_empty:
            if in_flight.group.is_empty:
                self._add_arrived()
            step = self._plan()
            if not in_flight.group.is_empty:
                self._now_s += max(self.host_s, in_flight.device_s)
            elif not step.group.is_empty:
                self._now_s += self.host_s
            self._finish(in_flight)
            self._add(self._arrived())
            in_flight = step
        return self._finished_report()

    def _add_arrived(self) -> None:
        if not self._scheduler.has_work and self._arrivals:
            self._now_s = max(self._now_s, self._arrivals[0].arrival_time_s)
        self._add(self._arrived())

    def _arrived(self) -> Iterable[Request]:
        while self._arrivals and self._arrivals[0].arrival_time_s <= self._now_s:
            yield self._arrivals.popleft()

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._scheduler.add_request(request)

    def _plan(self) -> _PlannedStep:
        group = self._scheduler.schedule()
        if group.is_empty:
            return _PlannedStep(group, [], 0.0)
        if self.on_step is not None:
            self.on_step(group)
        stats = self._scheduler.stats()
        num_blocks = self._blocks.num_allocated_blocks
        self._report.samples.append(
            StepSample(self._now_s, stats.num_running, stats.num_waiting, num_blocks, group.num_tokens)
        )
        outputs = [ForwardOutput(np.zeros(sum(item.is_sampled for item in batch), np.int32)) for batch in group.batches]
        device_s = max(self._latency.step_s(StepShape.of(batch)) for batch in group.batches)
        return _PlannedStep(group, outputs, device_s)

    def _finish(self, step: _PlannedStep) -> None:
        for delta in self._scheduler.update(step.group, step.outputs):
            self._record(delta)

    def _record(self, delta: SequenceDelta) -> None:
        times = self._token_times.setdefault((delta.request_id, delta.index), [])
        times.extend([self._now_s] * len(delta.token_ids))
        if delta.finish_reason is None:
            return
        request = self._requests[delta.request_id]
        report = self._report
        span = (request.arrival_time_s, request.first_scheduled_time_s, times[0] if times else None, self._now_s)
        report.spans[delta.request_id, delta.index] = span
        if not request.is_offline:
            report.num_online += 1
            report.num_met += delta.error is None and meets_objectives(request, times, self._config)
        if delta.error is not None:
            report.num_failed += 1
            return
        report.e2e_s.append(self._now_s - request.arrival_time_s)
        if times:
            report.ttft_s.append(times[0] - request.arrival_time_s)
            intervals = np.diff(times).tolist()
            report.itl_s.extend(intervals)
            if intervals:
                report.tpot_s.append(sum(intervals) / len(intervals))

    def _finished_report(self) -> SimulationReport:
        report, stats = self._report, self._scheduler.stats()
        self._scheduler.check_integrity()
        report.duration_s = self._now_s
        report.num_steps = stats.num_steps
        report.num_prompt_tokens = stats.num_prompt_tokens
        report.num_generated_tokens = stats.num_generated_tokens
        report.num_preemptions = stats.num_preemptions
        report.num_leaked_blocks = self._blocks.num_allocated_blocks
        report.prefix_cache_hit_rate = stats.prefix_cache_hits / max(stats.prefix_cache_queries, 1)
        return report
