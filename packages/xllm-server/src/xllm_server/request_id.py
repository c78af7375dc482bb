"""Every answer carries `X-Request-Id`: the client's own, or a fresh one. Knows nothing of the engine's ids."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xllm_framework.errors import InvalidRequest
from xllm_server.errors import error_response
from xllm_server.protocol.engine_request import check_request_id

HEADER = "X-Request-Id"


class RequestIdMiddleware:
    """Puts `request_id` (str) and `has_request_id` (whether the client chose it) into the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        request_id = uuid.uuid4().hex if given is None else given
        state = scope.setdefault("state", {})
        state["request_id"], state["has_request_id"] = request_id, given is not None

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = state["request_id"]
            await send(message)

        if given is not None:
            try:
                check_request_id(given, HEADER)
            except InvalidRequest as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send_with_id)
