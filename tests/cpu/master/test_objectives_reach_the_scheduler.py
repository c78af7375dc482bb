"""What a caller wants of a request's service arrives at the scheduler, from the master and from the offline API."""

from __future__ import annotations

import queue

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.request import Request, SamplingParams, ServiceObjectives
from xllm_runtime import LLM
from xllm_scheduler import Scheduler

OBJECTIVES = ServiceObjectives(ttft_slo_ms=100.0, tpot_slo_ms=20.0, ttlt_slo_ms=900.0, ttft_weight=2.0)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return the list of all requests that schedulers get from now on."""
    requests: list[Request] = []
    add_request = Scheduler.add_request

    def spy(self: Scheduler, request: Request) -> None:
        requests.append(request)
        add_request(self, request)

    monkeypatch.setattr(Scheduler, "add_request", spy)
    return requests


def test_from_the_master(added: list[Request]) -> None:
    with LLM(str(tiny_checkpoint("llama")), device="null") as llm:
        prepared = llm.master.prepare_completion(
            [1, 2, 3],
            SamplingParams(max_tokens=2),
            priority=-3,
            deadline_s=1e12,
            cache_salt="tenant",
            is_offline=True,
            objectives=OBJECTIVES,
        )
        done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        llm.master.submit(prepared, lambda output: done.put(True) if output.finished else None)
        done.get(timeout=60)
    (request,) = added
    assert (request.priority, request.deadline_s, request.cache_salt) == (-3, 1e12, "tenant")
    assert request.is_offline
    assert request.objectives == OBJECTIVES


def test_from_the_offline_api(added: list[Request]) -> None:
    with LLM(str(tiny_checkpoint("llama")), device="null") as llm:
        llm.generate([[1, 2], [3]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert [request.is_offline for request in added] == [True, True]
    assert [request.objectives for request in added] == [ServiceObjectives()] * 2
