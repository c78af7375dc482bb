"""Collects what a request brings, for tests that drive an `LLMMaster`."""

from __future__ import annotations

import threading

from xllm_framework.request import RequestOutput, SamplingParams
from xllm_runtime.master import ChatInput, LLMMaster, PreparedRequest

TIMEOUT_S = 60.0
"""A test that waits longer than this has failed."""


class Collector:
    """An output callback that remembers every delta; `result` waits for the end and joins them."""

    def __init__(self) -> None:
        self.deltas: list[RequestOutput] = []
        self._has_news = threading.Condition()

    def __call__(self, output: RequestOutput) -> None:
        """Take one delta."""
        with self._has_news:
            self.deltas.append(output)
            self._has_news.notify_all()

    @property
    def is_finished(self) -> bool:
        """Whether the last output has come."""
        return bool(self.deltas) and self.deltas[-1].finished

    def wait_for(self, num_deltas: int) -> None:
        """Wait until so many deltas have come, or the end."""
        with self._has_news:
            has_come = self._has_news.wait_for(lambda: len(self.deltas) >= num_deltas or self.is_finished, TIMEOUT_S)
        assert has_come, f"only {len(self.deltas)} outputs came"

    def result(self) -> RequestOutput:
        """Wait for the end and return everything as one output."""
        with self._has_news:
            assert self._has_news.wait_for(lambda: self.is_finished, TIMEOUT_S), f"no end after {self.deltas}"
        first, *rest = self.deltas
        for output in rest:
            first.extend(output)
        self.deltas = [first]
        return first


def start(
    master: LLMMaster, prompt: str | list[int] | ChatInput, **sampling: object
) -> tuple[PreparedRequest, Collector]:
    """Submit one greedy request (unless `sampling` says otherwise); return it and its collector."""
    params = SamplingParams(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    if isinstance(prompt, ChatInput):
        prepared = master.prepare_chat(prompt, params)
    else:
        prepared = master.prepare_completion(prompt, params)
    collector = Collector()
    master.submit(prepared, collector)
    return prepared, collector
