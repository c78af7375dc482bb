"""POST /v1/embeddings. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.embeddings import EmbeddingService
from xllm_server.protocol.pooling import EmbeddingRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def embeddings_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["embeddings"])
    service = EmbeddingService(state)

    @router.post("/embeddings", openapi_extra=json_body(EmbeddingRequest))
    @router.post("/v1/embeddings", openapi_extra=json_body(EmbeddingRequest))
    async def embeddings(http: Request) -> Response:
        """Return the vectors of texts or of token ids."""
        return await service.respond(http)

    return router
