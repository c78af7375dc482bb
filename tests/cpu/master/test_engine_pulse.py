"""The engine side's heartbeat: who sends it, and what silence and long steps mean."""

from __future__ import annotations

import queue
import time

from support.clock import ManualClock
from xllm_framework.request.messages import Heartbeat
from xllm_runtime.master.heartbeat import SILENCE_S, EnginePulse, HeartbeatThread


def test_silence_is_a_complaint() -> None:
    clock = ManualClock()
    pulse = EnginePulse(clock)
    clock.advance(SILENCE_S)
    assert pulse.complaint(0.0) is None
    clock.advance(1)
    assert "31 s" in (pulse.complaint(0.0) or "")
    pulse.beat(Heartbeat(0.0))
    assert pulse.complaint(0.0) is None


def test_a_long_step_is_one_only_with_a_limit() -> None:
    clock = ManualClock()
    pulse = EnginePulse(clock)
    pulse.beat(Heartbeat(61.0))
    assert pulse.complaint(0.0) is None
    assert pulse.complaint(62.0) is None
    assert "step_timeout" in (pulse.complaint(60.0) or "")
    pulse.beat(Heartbeat(0.0))
    assert pulse.complaint(60.0) is None


def test_the_thread_tells_the_age_of_the_step_and_ends() -> None:
    class Loop:
        step_began_s: float | None = time.monotonic() - 100

    heard: queue.SimpleQueue[Heartbeat] = queue.SimpleQueue()
    thread = HeartbeatThread(Loop(), heard.put)
    thread.start()
    assert heard.get(timeout=30).step_age_s >= 100
    thread.stop()
    while not heard.empty():
        heard.get()
    assert heard.empty()
