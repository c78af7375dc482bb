"""Server-sent events over ASGI. Knows nothing of what the events say.

Written straight to ASGI's `send`: one call for all events that a step brought, no task and no queue between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from xllm_framework.errors import XLLMError
from xllm_server.errors import error_body

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(content: msgspec.Struct) -> bytes:
    """Return one event that holds `content` as JSON."""
    return b"data: " + _encode(content) + b"\n\n"


def named_event(name: str, content: msgspec.Struct | dict[str, Any]) -> bytes:
    """Return one event of a kind that has a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(content) + b"\n\n"


def error_event(error: XLLMError) -> bytes:
    """Return one event that holds OpenAI's error object."""
    return b"data: " + error_body(error) + b"\n\n"


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
