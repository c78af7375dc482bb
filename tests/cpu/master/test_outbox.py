"""Outputs go out at once where the socket takes them, behind what waits where it does not, and never make anybody wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from xllm_framework.request.messages import EngineStats, FromEngine, Heartbeat, SequenceDelta, StepOutputs
from xllm_runtime.master.outbox import MAX_DIRECT_DELTAS, Outbox
from xllm_runtime.master.wire import read_messages


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def outputs(number: int, num_deltas: int = 1, num_tokens: int = 1) -> StepOutputs:
    deltas = [SequenceDelta(f"r{index}", 0, [number] * num_tokens) for index in range(num_deltas)]
    return StepOutputs(deltas, EngineStats(num_steps=number))


def test_a_small_step_needs_no_thread(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = Outbox(ends[0])
    outbox.put(outputs(5))
    assert next(read_messages(ends[1], FromEngine)) == outputs(5)


def test_what_the_socket_does_not_take_waits_and_keeps_its_place(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = Outbox(ends[0])
    sent: list[object] = []
    for number in range(60):  # some megabytes, which nobody reads
        message = outputs(number, 1 + number % (2 * MAX_DIRECT_DELTAS), num_tokens=20_000 if number % 3 else 1)
        outbox.put(message)
        sent.append(message)
        if number == 30:
            outbox.start()
            outbox.put(Heartbeat(0.5))
            sent.append(Heartbeat(0.5))
    received: list[object] = []
    reader = threading.Thread(target=lambda: received.extend(read_messages(ends[1], FromEngine)))
    reader.start()
    outbox.close()
    ends[0].shutdown(socket.SHUT_RDWR)
    reader.join()
    assert received == sent


def test_a_parent_that_is_gone_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = Outbox(ends[0])
    outbox.start()
    ends[1].close()
    for number in range(3):
        outbox.put(outputs(number))
        outbox.put(outputs(number, 2 * MAX_DIRECT_DELTAS))
    outbox.close()
