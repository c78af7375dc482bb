"""Who is served first: eleven orders, each a small object. Knows nothing of how many tokens or blocks anyone gets.

Whatever the strategy, requests that somebody waits for go before offline ones, and equals by arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xllm_framework.errors import InvalidConfig
from xllm_framework.request import Request
from xllm_scheduler.objectives import Assessment, Urgency
from xllm_scheduler.queue import Order

PATIENCE = 10.0
"""A prompt may be overtaken by shorter ones that come within this many times the time that it takes alone."""

AssessedRank = Callable[[Request, Assessment], Order]


@dataclass(frozen=True, slots=True)
class OrderingStrategy:
    """An order of sequences, smaller ranks first.

    Exactly one of `rank` and `assessed_rank` is set. All ranks of one strategy have the same length, or differ in their beginning.
    """

    name: str
    rank: Callable[[Request], Order] | None = None
    """The rank of a request, which holds for all its life."""
    paced_rank: Callable[[Request, float], Order] | None = None
    """Goes before `rank`: of a request and the seconds that a prompt token takes; anew when those are quite different."""
    assessed_rank: AssessedRank | None = None
    """The rank of a sequence in the next step; all are ranked anew before each step."""
    num_class_ranks: int = 0
    """So many leading parts of the rank part sequences into classes; of these, a higher one may take blocks from a lower
    one to be admitted (`policies.unified`)."""


def _by_stage(assessment: Assessment) -> float:
    return 0.0 if assessment.is_decode else 1.0


def _urgency_density(_: Request, assessment: Assessment) -> Order:
    """Urgent and starved first: decodes by density, starved prompts by deadline, urgent prompts by density."""
    urgency = assessment.urgency
    if urgency is Urgency.CALM or urgency is Urgency.LATE:
        return (1.0, float(urgency is Urgency.LATE), assessment.deadline_s)
    if assessment.is_decode:
        return (0.0, 0.0, -assessment.density)
    if urgency is Urgency.STARVED:
        return (0.0, 1.0, assessment.deadline_s)
    return (0.0, 2.0, -assessment.density)


def _decode_urgency_density(request: Request, assessment: Assessment) -> Order:
    return (_by_stage(assessment), *_urgency_density(request, assessment))


def _urgency_priority(request: Request, assessment: Assessment) -> Order:
    urgency = assessment.urgency
    if urgency is Urgency.CALM or urgency is Urgency.LATE:
        return (1.0, float(urgency is Urgency.LATE), assessment.deadline_s)
    return (0.0, float(request.priority), 0.0)


def _fair(request: Request, seconds_a_token: float) -> Order:
    """Return priority, then a time that is later the longer the prompt is: short ones overtake, but not for ever."""
    num_tokens = request.sequences[0].num_prompt_tokens
    return (request.priority, request.arrival_time_s + PATIENCE * seconds_a_token * num_tokens)


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        OrderingStrategy("fcfs", rank=lambda _: ()),
        OrderingStrategy("priority", rank=lambda request: (request.priority,), num_class_ranks=1),
        OrderingStrategy("fair", rank=lambda request: (request.priority,), paced_rank=_fair, num_class_ranks=1),
        OrderingStrategy("deadline", assessed_rank=lambda _, a: (a.deadline_s,)),
        OrderingStrategy("sjf", assessed_rank=lambda _, a: (a.estimate_s,)),
        OrderingStrategy("density", assessed_rank=lambda _, a: (-a.density,)),
        OrderingStrategy("decode_density", assessed_rank=lambda _, a: (_by_stage(a), -a.density)),
        OrderingStrategy("decode_deadline", assessed_rank=lambda _, a: (_by_stage(a), a.deadline_s)),
        OrderingStrategy("multi_slo_and_prio", assessed_rank=_urgency_density, num_class_ranks=1),
        OrderingStrategy("decode_urgency_density", assessed_rank=_decode_urgency_density, num_class_ranks=2),
        OrderingStrategy("urgency_priority", assessed_rank=_urgency_priority, num_class_ranks=1),
    )
}
"""By name; what each means stands in docs/concepts/scheduling.md."""


def find_strategy(name: str) -> OrderingStrategy:
    """Return the strategy `name`.

    Raises:
        InvalidConfig: there is none.
    """
    if name not in STRATEGIES:
        raise InvalidConfig(f"priority_strategy must be one of {', '.join(STRATEGIES)}, not {name!r}.")
    return STRATEGIES[name]
