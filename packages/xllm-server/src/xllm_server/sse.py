"""Server-sent events over ASGI. Knows nothing of what the events say.

Written straight to ASGI's `send`: one call for all events that a step brought, no task and no queue between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(content: msgspec.Struct) -> bytes:
    """Return one event that holds `content` as JSON."""
    return b"data: " + _encode(content) + b"\n\n"


def error_event(body: bytes) -> bytes:
    """Return one event that holds an error object, already JSON."""
    return b"data: " + body + b"\n\n"


class EventStream(StreamingResponse):
    """A response whose body is what `events` yields, each sent at once.

    Whatever happens, `events` is closed and `on_close` is called at the end; a generator that never began to run would
    not run its own clean-up.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], on_close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"}, media_type="text/event-stream")
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in self._events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()
            self._on_close()
