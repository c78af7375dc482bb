"""Puts routes, middleware and error answers together. Knows nothing of processes, sockets or signals."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from xllm_framework.errors import XLLMError
from xllm_server import __version__
from xllm_server.api_service.service import CLIENT_LEFT
from xllm_server.auth import ApiKeyMiddleware
from xllm_server.cross_origin import origin_middleware
from xllm_server.errors import MethodNotAllowed, ServerFault, UnknownRoute, error_response
from xllm_server.metrics import HttpMetricsMiddleware
from xllm_server.protocol.schema import component_schemas
from xllm_server.request_id import RequestIdMiddleware
from xllm_server.request_log import RequestLogMiddleware
from xllm_server.routes.table import bodies_for, routers_for
from xllm_server.state import ServerState

logger = logging.getLogger(__name__)


class ServerApp(FastAPI):
    """FastAPI whose document also describes the request types of `backend`'s routes, which are msgspec's."""

    backend = "llm"

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(component_schemas(bodies_for(self.backend)))
        assert self.openapi_schema is not None, "the call above has made it"
        return self.openapi_schema


def build_app(state: ServerState) -> FastAPI:
    """Return the application that serves `state`'s master."""
    middleware = [Middleware(HttpMetricsMiddleware, state.metrics), Middleware(RequestIdMiddleware)]
    if state.tracer is not None:
        from xllm_server.tracing import TracingMiddleware

        middleware.append(Middleware(TracingMiddleware, state.tracer))
    if state.config.log_requests:
        middleware.append(Middleware(RequestLogMiddleware))
    middleware += origin_middleware(state.config.allowed_origins)
    if state.config.api_key or state.config.control_key:
        middleware.append(Middleware(ApiKeyMiddleware, state.config.api_key, state.config.control_key))
    app = ServerApp(title="xLLM", version=__version__, middleware=middleware, redirect_slashes=False)
    app.backend = state.master.backend
    for router in routers_for(app.backend):
        app.include_router(router(state))
    app.add_exception_handler(XLLMError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer_fault)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, XLLMError), "registered for this type"
    return error_response(error)


async def _answer_http_exception(http: Request, error: Exception) -> Response:
    """Give the framework's own refusals OpenAI's shape."""
    assert isinstance(error, HTTPException), "registered for this type"
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"{http.method} is not allowed for {http.url.path[:200]}."))
        response.headers.update(error.headers or {})
        return response
    return error_response(UnknownRoute(f"There is no {http.url.path[:200]} here."))


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _answer_fault(_: Request, __: Exception) -> Response:
    """Answer an unexpected error; the framework raises it again after that, so that the log holds its traceback."""
    return error_response(ServerFault("The server failed on this request; its log says why."))
