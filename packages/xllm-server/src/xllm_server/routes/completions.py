"""POST /v1/completions. Knows nothing of bodies: the service reads and checks them completely."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.completion import CompletionService
from xllm_server.protocol.completion import CompletionRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def completions_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["generation"])
    service = CompletionService(state)

    @router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
    async def create_completion(http: Request) -> Response:
        """Continue one or several prompts, whole or streamed."""
        return await service.respond(http)

    return router
