"""POST /v1/sample. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.sample import SampleService
from xllm_server.protocol.sample import SampleRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def sample_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["generation"])
    service = SampleService(state)

    @router.post("/v1/sample", openapi_extra=json_body(SampleRequest))
    async def sample(http: Request) -> Response:
        """Return the most probable tokens at marked places of a prompt."""
        return await service.respond(http)

    return router
