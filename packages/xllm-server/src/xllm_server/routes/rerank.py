"""POST /v1/rerank, also as /v2/rerank and /rerank. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.rerank import RerankService
from xllm_server.protocol.pooling import RerankRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def rerank_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["embeddings"])
    service = RerankService(state)

    @router.post("/rerank", openapi_extra=json_body(RerankRequest))
    @router.post("/v1/rerank", openapi_extra=json_body(RerankRequest))
    @router.post("/v2/rerank", openapi_extra=json_body(RerankRequest))
    async def rerank(http: Request) -> Response:
        """Return documents by how well they fit a query, the best first."""
        return await service.respond(http)

    return router
