"""How urgent each sequence is, by its request's objectives and a latency model. Knows nothing of queues or blocks.

For a sequence, at one moment:

    estimate    time of the work to its next token: the rest of its prompt, or one decode
    deadline    when that token is due: arrival + TTFT objective, or first token + tokens so far x TPOT objective, and
                never later than arrival + TTLT objective; infinite without objectives
    remaining   deadline - now

The mean of the intervals counts, so that a sequence that was fast at first may be slow later. Over all sequences:

    limit       the most that a step may take: the least remaining time that can still be met, but not less than
                0.65 x the least TPOT objective of a sequence that decodes
    load        time of all work at hand, with the constant of as many steps of `limit` as it takes

A sequence is starved if it is late by more than `starvation_threshold` x its objective, urgent if its remaining time is
below `urgency_coefficient` x load, and calm otherwise; a prompt that cannot meet its objective any more is late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import inf

from xllm_framework.config import SchedulerConfig
from xllm_framework.request import Request, Sequence, SequenceStatus
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.queue import QueueEntry

_TPOT_SHARE = 0.65
_MAX_PRIORITY = 16


class Urgency(IntEnum):
    """How near a sequence is to missing its objective."""

    STARVED = 0
    URGENT = 1
    LATE = 2
    """A prompt that cannot meet its objective any more, but is not late by far. A decode can catch up: the mean counts."""
    CALM = 3


@dataclass(slots=True)
class Assessment:
    """One sequence at one moment; all times in seconds."""

    is_decode: bool
    estimate_s: float
    deadline_s: float
    remaining_s: float
    objective_s: float
    """The TTFT objective of a prefill, the TPOT objective of a decode; infinite without one."""
    density: float
    """What its next token is worth, a second of work."""
    urgency: Urgency = Urgency.CALM


class ObjectiveAssessor:
    """Assesses sequences under the objectives of `config`, where requests bring none of their own."""

    def __init__(self, config: SchedulerConfig, latency: LatencyModel) -> None:
        self._latency = latency
        self._default_ttft_s = 1e-3 * config.default_ttft_slo_ms or inf
        self._default_tpot_s = 1e-3 * config.default_tpot_slo_ms or inf
        self._urgency_coefficient = config.urgency_coefficient
        self._starvation_threshold = config.starvation_threshold if config.enable_starvation_guard else inf

    def assess(self, entries: Iterable[QueueEntry], now_s: float) -> tuple[list[Assessment], float]:
        """Return one assessment an entry, in order, and the most seconds that the next step should take (or infinity)."""
        assessments = [self._assess_one(entry.request, entry.sequence, now_s) for entry in entries]
        feasible = [a.remaining_s for a in assessments if a.remaining_s >= a.estimate_s + self._latency.constant_s]
        limit_s = min(feasible, default=inf)
        least_tpot_s = min((a.objective_s for a in assessments if a.is_decode), default=inf)
        if least_tpot_s < inf:
            limit_s = max(limit_s, _TPOT_SHARE * least_tpot_s) if feasible else _TPOT_SHARE * least_tpot_s
        load_s = sum(a.estimate_s for a in assessments)
        if limit_s < inf:
            load_s *= limit_s / max(limit_s - self._latency.constant_s, 0.1 * limit_s)
        load_s += self._latency.constant_s
        for assessment in assessments:
            assessment.urgency = self._urgency(assessment, load_s)
        return assessments, limit_s

    def _assess_one(self, request: Request, sequence: Sequence, now_s: float) -> Assessment:
        objectives = request.objectives
        is_decode = sequence.status is SequenceStatus.DECODE
        num_computed = sequence.num_computed_tokens
        if is_decode:
            estimate_s = self._latency.decode_s(num_computed)
        else:
            estimate_s = self._latency.prefill_s(sequence.num_tokens - num_computed, num_computed)
        ttft_s = 1e-3 * objectives.ttft_slo_ms or self._default_ttft_s
        tpot_s = 1e-3 * objectives.tpot_slo_ms or self._default_tpot_s
        num_output_tokens = sequence.num_output_tokens
        if num_output_tokens == 0 or request.first_token_time_s is None:
            objective_s, deadline_s, weight = ttft_s, request.arrival_time_s + ttft_s, objectives.ttft_weight
        else:
            objective_s, weight = tpot_s, objectives.tpot_weight
            deadline_s = request.first_token_time_s + tpot_s * num_output_tokens
        if objectives.ttlt_slo_ms:
            weight *= objectives.ttlt_weight
            deadline_s = min(deadline_s, request.arrival_time_s + 1e-3 * objectives.ttlt_slo_ms)
            objective_s = min(objective_s, 1e-3 * objectives.ttlt_slo_ms)
        weight *= 2.0 ** -max(-_MAX_PRIORITY, min(request.priority, _MAX_PRIORITY))
        density = weight / max(estimate_s, 1e-9)
        return Assessment(is_decode, estimate_s, deadline_s, deadline_s - now_s, objective_s, density)

    def _urgency(self, assessment: Assessment, load_s: float) -> Urgency:
        remaining_s = assessment.remaining_s
        if remaining_s < -self._starvation_threshold * assessment.objective_s:
            return Urgency.STARVED
        if remaining_s < assessment.estimate_s + self._latency.constant_s and not assessment.is_decode:
            return Urgency.LATE
        return Urgency.URGENT if remaining_s < self._urgency_coefficient * load_s else Urgency.CALM
