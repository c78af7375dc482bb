"""POST /v1/score, also as /score. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.score import ScoreService
from xllm_server.protocol.pooling import ScoreRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def score_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["embeddings"])
    service = ScoreService(state)

    @router.post("/score", openapi_extra=json_body(ScoreRequest))
    @router.post("/v1/score", openapi_extra=json_body(ScoreRequest))
    async def score(http: Request) -> Response:
        """Return how well texts belong together, pair by pair."""
        return await service.respond(http)

    return router
