"""A worker in its own thread: order, placeholders, failures and the end."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.errors import EngineDead, InvalidConfig, XLLMError
from xllm_framework.kv_cache import BlockMoves, CacheLayout
from xllm_runtime.executor.warm_up import warm_up_input
from xllm_runtime.worker import ThreadedWorkerClient


class DoublingWorker:
    """Draws twice the first token of the input; 13 raises."""

    model_impl = device = dtype = "doubling"
    vocab_size = 1000
    can_copy_blocks = True
    cache_layout = CacheLayout()

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.moves: list[BlockMoves] = []

    def num_blocks_that_fit(self, block_size: int) -> int:
        return 7 * block_size

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        raise XLLMError(f"{num_blocks} blocks are too many.")

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """Nothing is kept."""

    def move_blocks(self, moves: BlockMoves) -> None:
        self.moves.append(moves)

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        assert threading.current_thread() is self.thread
        if forward_input.token_ids[0] == 13:
            raise RuntimeError("unlucky")
        return ForwardOutput(np.array([2 * forward_input.token_ids[0]], np.int32))


def step(token_id: int) -> ForwardInput:
    forward_input = warm_up_input(1)
    forward_input.token_ids[0] = token_id
    return forward_input


@pytest.fixture
def client():
    client = ThreadedWorkerClient(DoublingWorker)
    yield client
    client.close()


def test_a_placeholder_becomes_the_token_of_the_step_before(client):
    client.submit(step(3))
    client.submit(step(-1))
    assert client.collect().token_ids.tolist() == [6]
    client.submit(step(-1))
    assert client.collect().token_ids.tolist() == [12]
    assert client.collect().token_ids.tolist() == [24]


def test_a_step_that_counts_on_a_failed_one_fails_too(client):
    client.submit(step(13))
    client.submit(step(-1))
    with pytest.raises(RuntimeError, match="unlucky"):
        client.collect()
    with pytest.raises(XLLMError, match="step before failed"):
        client.collect()
    client.submit(step(4))
    assert client.collect().token_ids.tolist() == [8]


def test_calls_return_and_raise_as_the_workers_own(client):
    assert client.num_blocks_that_fit(16) == 112
    with pytest.raises(XLLMError, match="9 blocks"):
        client.allocate_kv_cache(9, 16)


def test_a_worker_that_cannot_be_made_is_told_at_once():
    def create():
        raise InvalidConfig("no such device")

    with pytest.raises(InvalidConfig, match="no such device"):
        ThreadedWorkerClient(create)


def test_a_closed_worker_is_dead(client):
    client.close()
    client.close()
    client.submit(step(1))
    with pytest.raises(EngineDead):
        client.collect()


def test_a_client_that_nobody_closes_lets_thread_and_worker_go():
    made = []

    def create():
        worker = DoublingWorker()
        made.append(weakref.ref(worker))
        return worker

    client = ThreadedWorkerClient(create)
    client.submit(step(3))
    assert client.collect().token_ids.tolist() == [6]
    thread = made[0]().thread
    del client
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    assert made[0]() is None
