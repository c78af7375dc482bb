"""Keys: one for users on every route but /health, one for those who operate the server. Knows nothing of users.

The operator's key opens every route. Without one, a server that has a user key refuses its control routes, and one that
has no key at all serves them: it is bound to the loopback address unless told otherwise.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from xllm_server.errors import Forbidden, Unauthorized, error_response

OPEN_PATHS = frozenset({"/health"})
"""Probes carry no key, and learn no more than whether the server lives."""
CONTROL_PATHS = frozenset(
    {"/pause", "/resume", "/sleep", "/wakeup", "/start_profile", "/stop_profile", "/catalogue", "/catalogue/rollback"}
)
"""What changes the server for everybody."""


class ApiKeyMiddleware:
    """Refuses requests without a key, in time that does not depend on the key sent.

    A key comes as `Authorization: Bearer <key>`, as `x-api-key: <key>` (Anthropic's clients), or as the password of
    `Authorization: Basic`, which browsers ask for.
    """

    def __init__(self, app: ASGIApp, api_key: str, control_key: str) -> None:
        self._app = app
        self._user_keys = [key.encode() for key in (api_key, control_key) if key] if api_key else []
        self._control_keys = [control_key.encode()] if control_key else []
        self._is_control_shut = bool(api_key) and not control_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            error = self._refusal(scope["path"], Headers(scope=scope))
            if error is not None:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Unauthorized | Forbidden | None:
        """Return why a request is refused, or None."""
        is_control = path in CONTROL_PATHS
        sent = list(_keys(headers))
        if self._user_keys and not _fits(sent, self._user_keys):
            return Unauthorized("Send the server's API key as 'Authorization: Bearer <key>'.")
        if is_control and self._is_control_shut:
            return Forbidden(f"{path} needs a server that was started with --control-key.")
        if is_control and self._control_keys and not _fits(sent, self._control_keys):
            return Unauthorized(f"Send the server's control key for {path} as 'Authorization: Bearer <key>'.")
        return None


def _keys(headers: Headers) -> Iterator[bytes]:
    """Yield the keys that a request brings."""
    scheme, _, content = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield content.encode("latin-1", "replace")
    elif scheme.lower() == "basic":
        try:
            yield base64.b64decode(content, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return
    if "x-api-key" in headers:
        yield headers["x-api-key"].encode("latin-1", "replace")


def _fits(sent: list[bytes], expected: list[bytes]) -> bool:
    """Whether one of the keys sent is one of those expected; all are compared."""
    matches = [hmac.compare_digest(key, known) for key in sent for known in expected]
    return any(matches)
