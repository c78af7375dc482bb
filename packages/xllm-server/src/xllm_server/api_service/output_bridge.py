"""Carries outputs from the master's dispatcher thread to the event loop. Knows nothing of what they hold.

A step of the engine brings outputs for many requests at once; the first of them wakes the loop, and that one wake-up
delivers all that have come by then. So a step costs one wake-up, however many requests it served.
"""

from __future__ import annotations

import asyncio
from collections import deque

from xllm_framework.request import RequestOutput

PromptOutput = tuple[int, RequestOutput]
"""(index of the prompt within its HTTP request, the output)."""


class OutputQueue:
    """Outputs of one HTTP request that wait for its coroutine. Event loop only."""

    def __init__(self) -> None:
        self._items: list[PromptOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self.is_closed = False
        """Nobody wants more: the client left, or the answer is complete."""

    def put(self, item: PromptOutput) -> None:
        """Add an output and wake the reader."""
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        """Make `get` return nothing from now on."""
        self.is_closed = True
        self._items.clear()
        self._wake()

    async def wait(self) -> None:
        """Wait until there is an output, or the queue is closed."""
        while not self._items and not self.is_closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def peek(self) -> PromptOutput | None:
        """Return the oldest output and leave it in the queue."""
        return self._items[0] if self._items else None

    async def get(self) -> list[PromptOutput]:
        """Wait, then return all outputs that have come since; none when the queue is closed."""
        await self.wait()
        items, self._items = self._items, []
        return items

    def put_back(self, items: list[PromptOutput]) -> None:
        """Return outputs that the reader got but has not used."""
        self._items[:0] = items

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OutputBridge:
    """See the module. One for all requests of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[tuple[OutputQueue, PromptOutput]] = deque()
        self._is_scheduled = False

    def post(self, queue: OutputQueue, item: PromptOutput) -> None:
        """Hand `item` to `queue` on the event loop. Any thread; does not block."""
        self._pending.append((queue, item))
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended, and with it every reader
                self._pending.clear()

    def _deliver(self) -> None:
        # First the flag, then the items: whoever appends after this line schedules the next delivery himself.
        self._is_scheduled = False
        while self._pending:
            queue, item = self._pending.popleft()
            if not queue.is_closed:
                queue.put(item)
