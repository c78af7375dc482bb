"""A line in the log for each answered request: who, what, how long, how many tokens; never contents. Knows no routes."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("xllm_server.requests")


class RequestLogMiddleware:
    """See the module. Stands inside `RequestIdMiddleware`; token counts come from the request's state, if it has any."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        status, num_bytes = 500, 0

        async def send_and_note(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                num_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            fields = {
                "request_id": scope["state"]["request_id"],
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "seconds": round(time.monotonic() - began_s, 4),
                "response_bytes": num_bytes,
                **scope["state"].get("token_counts", {}),
            }
            text = " ".join(f"{name}={value}" for name, value in fields.items())
            logger.info("%s", text, extra={"fields": fields})
