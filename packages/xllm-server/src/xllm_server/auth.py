"""One API key for every route but /health. Knows nothing of users."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from xllm_server.errors import Unauthorized, error_response

OPEN_PATHS = frozenset({"/health"})
"""Probes carry no key, and learn no more than whether the server lives."""


class ApiKeyMiddleware:
    """Refuses requests without `Authorization: Bearer <api_key>`, in time that does not depend on the key sent."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            sent = Headers(scope=scope).get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(sent, self._expected):
                error = Unauthorized("Send the server's API key as 'Authorization: Bearer <key>'.")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
