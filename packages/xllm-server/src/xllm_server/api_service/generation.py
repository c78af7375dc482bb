"""The life of one HTTP request in the engine: prepare, submit, outputs, end. Knows nothing of JSON shapes.

                enter            start               next / results              close
    admission ----------> open ----------> running ------------------> ended ------------> left
                                  each prompt is one request of the master

Whatever happens, `close` runs once at the end: it cancels what still runs, so that its blocks are free one step later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request

from xllm_framework.errors import QueueFull, ShuttingDown
from xllm_framework.request import FinishReason, RequestOutput
from xllm_framework.request.output import SequenceOutput
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.output_bridge import OutputQueue, PromptOutput
from xllm_server.errors import error_of_kind
from xllm_server.protocol.usage import Usage
from xllm_server.state import ServerState

RETRY_S = 0.005
"""Before a prompt is offered again to a full queue."""


class Generation:
    """See the module. Counts as one request in flight from its construction to `close`.

    Raises:
        QueueFull, ShuttingDown: the server takes no more requests.
    """

    def __init__(self, state: ServerState, http: Request) -> None:
        state.admission.enter()
        self._state = state
        self._http = http
        self._queue = OutputQueue()
        self._watcher: asyncio.Task[None] | None = None
        self._is_closed = False
        self._running: dict[int, str] = {}
        self._totals: dict[int, _PromptTotals] = {}
        self.prepared: Sequence[PreparedRequest] = ()

    @property
    def is_finished(self) -> bool:
        """Whether every prompt has had its last output, or the client left."""
        return not self._running or self._queue.is_closed

    @property
    def usage(self) -> Usage:
        """Token counts of all prompts, up to now."""
        totals = self._totals.values()
        return Usage.of(
            sum(total.num_prompt_tokens for total in totals),
            sum(sum(total.num_output_tokens.values()) for total in totals),
            sum(total.num_cached_tokens for total in totals),
        )

    async def start(self, prepare: Callable[[], Sequence[PreparedRequest]], *, is_streamed: bool) -> None:
        """Run `prepare` in the thread pool and submit what it returns.

        Not streamed, outputs are added up on the master's thread, and only the whole wakes the event loop.

        Raises:
            XLLMError: a prompt is refused.
        """
        self._watcher = asyncio.create_task(self._watch_client())
        loop = asyncio.get_running_loop()
        self.prepared = await loop.run_in_executor(self._state.executor, prepare)
        if self._queue.is_closed:
            return
        for index, prepared in enumerate(self.prepared):
            self._totals[index] = _PromptTotals()
            if not await self._submit(prepared, self._callback(index, is_streamed=is_streamed)):
                return
            self._running[index] = prepared.request_id
            self._state.metrics.request_started()

    async def wait_first(self) -> None:
        """Wait for the first output, so that an error before it can still be an answer of its own.

        Raises:
            XLLMError: the first output is an error.
        """
        await self._queue.wait()
        first = self._queue.peek()
        if first is not None and first[1].error is not None:
            await self.next()

    async def next(self) -> list[PromptOutput]:
        """Return the outputs since the last call, at least one; none when the client has left.

        Raises:
            XLLMError: one of the requests failed; what came before has been returned by then.
        """
        items = await self._queue.get()
        for position, item in enumerate(items):
            if position and item[1].error is not None:
                self._queue.put_back(items[position:])
                return items[:position]
            self._count(item)
            self._raise_error(item)
        return items

    async def results(self) -> list[RequestOutput]:
        """Return the whole output of each prompt; none when the client has left.

        Raises:
            XLLMError: one of the requests failed.
        """
        results: dict[int, RequestOutput] = {}
        while self._running:
            items = await self.next()
            if not items:
                return []
            results.update(items)
        return [results[index] for index in sorted(results)]

    def close(self) -> None:
        """Cancel what still runs and leave; calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        usage = self.usage
        self._http.state.token_counts = {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        self._cancel_running()
        self._queue.close()
        if self._watcher is not None:
            self._watcher.cancel()
        self._state.admission.leave()

    async def _submit(self, prepared: PreparedRequest, on_output: Callable[[RequestOutput], None]) -> bool:
        """Submit one prompt; where the queue is full of those before it, wait for room. False when the client has left.

        Raises:
            QueueFull: it is full, and none of ours runs.
        """
        while not self._queue.is_closed:
            try:
                self._state.master.submit(prepared, on_output)
                return True
            except QueueFull:
                if not self._running:
                    raise
            await asyncio.sleep(RETRY_S)
        return False

    def _callback(self, index: int, *, is_streamed: bool) -> Callable[[RequestOutput], None]:
        bridge, queue = self._state.bridge, self._queue
        if is_streamed:
            return lambda output: bridge.post(queue, (index, output))
        total: RequestOutput | None = None

        def add_up(output: RequestOutput) -> None:
            nonlocal total
            if total is None:
                total = output
            else:
                total.extend(output)
            if output.finished:
                bridge.post(queue, (index, total))

        return add_up

    async def _watch_client(self) -> None:
        """Wait for the client's end of the connection; then stop everything."""
        while (await self._http.receive())["type"] != "http.disconnect":
            pass
        self._cancel_running()
        self._queue.close()

    def _cancel_running(self) -> None:
        for request_id in self._running.values():
            self._state.master.cancel(request_id)
            self._state.metrics.request_aborted()
        self._running.clear()

    def _count(self, item: PromptOutput) -> None:
        index, output = item
        self._totals[index].add(output)
        if output.finished and index in self._running:
            del self._running[index]
            total = self._totals[index]
            num_output_tokens = sum(total.num_output_tokens.values())
            self._state.metrics.request_finished(output, total.finish_reasons, num_output_tokens)
            if self._state.tracer is not None:
                self._state.tracer.request_finished(
                    self.prepared[index], output, total.finish_reasons, num_output_tokens
                )

    @staticmethod
    def _raise_error(item: PromptOutput) -> None:
        _, output = item
        if output.error is not None:
            raise error_of_kind(output.error_kind, output.error)
        if any(sequence.finish_reason is FinishReason.ABORT for sequence in output.outputs):
            raise ShuttingDown("The request was cut short because the server is shutting down.")


class _PromptTotals:
    """Counts of one prompt, over all of its outputs so far."""

    __slots__ = ("finish_reasons", "num_cached_tokens", "num_output_tokens", "num_prompt_tokens")

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens: dict[int, int] = {}
        self.finish_reasons: set[str] = set()

    def add(self, output: RequestOutput) -> None:
        self.num_prompt_tokens = output.num_prompt_tokens
        self.num_cached_tokens = output.num_cached_tokens
        for sequence in output.outputs:
            self._add_sequence(sequence)

    def _add_sequence(self, sequence: SequenceOutput) -> None:
        self.num_output_tokens[sequence.index] = sequence.num_output_tokens
        if sequence.finish_reason is not None:
            self.finish_reasons.add(sequence.finish_reason.value)
