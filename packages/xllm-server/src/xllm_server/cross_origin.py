"""Which web sites' pages may call this server: its own, and those of `--allowed-origins`. Knows nothing of keys.

Browsers say where a page comes from; other clients say nothing and are not concerned. Without this, any page that a user
opens could make a server on the same machine work, or stop it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from xllm_server.errors import Forbidden, error_response


def origin_middleware(allowed_origins: str) -> list[Middleware]:
    """Return what enforces `--allowed-origins`, a list with commas, or *."""
    origins = [origin.strip().rstrip("/") for origin in allowed_origins.split(",") if origin.strip()]
    refusal = [] if "*" in origins else [Middleware(OriginMiddleware, frozenset(origins))]
    cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return [cors, *refusal] if origins else refusal


class OriginMiddleware:
    """Refuses requests that pages of other sites make."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and origin not in self._allowed and not _is_own(origin, headers.get("host", "")):
                error = Forbidden("Pages of other sites may not call this server (see --allowed-origins).")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own(origin: str, host: str) -> bool:
    """Whether a page of `origin` was served under the address that it calls."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
