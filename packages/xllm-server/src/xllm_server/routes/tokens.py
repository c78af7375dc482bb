"""POST /tokenize and /detokenize, also under /v1. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.tokens import TokenService
from xllm_server.protocol.schema import json_body
from xllm_server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from xllm_server.state import ServerState


def tokens_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["tokens"])
    service = TokenService(state)

    @router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    @router.post("/v1/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(http: Request) -> Response:
        """Return the token ids of a text or of a conversation."""
        return await service.tokenize(http)

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    @router.post("/v1/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(http: Request) -> Response:
        """Return the text of token ids."""
        return await service.detokenize(http)

    return router
