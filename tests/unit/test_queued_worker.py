"""The client of a worker that starts steps: order, placeholders and failures; with a fake worker, without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from xllm_framework.batch import ForwardOutput
from xllm_framework.errors import EngineDead, XLLMError
from xllm_framework.kv_cache import CacheLayout
from xllm_runtime.executor.interface import FinishedOutput
from xllm_runtime.executor.warm_up import warm_up_input
from xllm_runtime.worker import QueuedWorkerClient


@dataclass
class Step:
    """A step under way, whose tokens are where the next one finds them."""

    token: int
    is_on_device: bool = True
    num_waits: int = 0

    def wait(self) -> ForwardOutput:
        self.num_waits += 1
        return ForwardOutput(np.array([self.token], np.int32))


class StartingWorker:
    """Starts what it is given, and remembers it; fails where the token is 13."""

    model_impl, device, dtype, vocab_size, can_copy_blocks = "fake", "cuda", "bfloat16", 100, True
    cache_layout = CacheLayout()

    def __init__(self) -> None:
        self.started: list[tuple[int, object]] = []

    def begin(self, forward_input, before):
        token = int(forward_input.token_ids[0])
        if token == 13:
            raise ValueError("unlucky")
        self.started.append((token, before))
        return Step(token + 1)


def step_of(token: int):
    step = warm_up_input(1)
    step.token_ids[0] = token
    return step


def test_a_step_is_started_before_the_one_in_front_of_it_is_waited_for():
    worker = StartingWorker()
    client = QueuedWorkerClient(worker)
    client.submit(step_of(5))
    client.submit(step_of(-1))
    first = worker.started[1][1]
    assert isinstance(first, Step)
    assert first.num_waits == 0
    assert client.collect().token_ids.tolist() == [6]
    assert client.collect().token_ids.tolist() == [0]
    assert [token for token, _ in worker.started] == [5, -1]


def test_a_failure_comes_out_in_its_turn_and_fails_who_counts_on_it():
    client = QueuedWorkerClient(StartingWorker())
    client.submit(step_of(13))
    client.submit(step_of(-1))
    with pytest.raises(ValueError, match="unlucky"):
        client.collect()
    with pytest.raises(XLLMError, match="failed"):
        client.collect()
    client.submit(step_of(3))
    assert client.collect().token_ids.tolist() == [4]


def test_a_rank_without_work_starts_nothing():
    worker = StartingWorker()
    client = QueuedWorkerClient(worker)
    empty = warm_up_input(1)
    empty.seq_lens = np.empty(0, np.int32)
    client.submit(empty)
    assert len(client.collect().token_ids) == 0
    assert worker.started == []
    client.submit(step_of(3))
    assert isinstance(worker.started[0][1], FinishedOutput)


def test_nothing_is_collected_that_was_not_submitted():
    client = QueuedWorkerClient(StartingWorker())
    with pytest.raises(EngineDead, match="given none"):
        client.collect()
    client.close()
    client.submit(step_of(3))
    with pytest.raises(EngineDead, match="closed"):
        client.collect()
