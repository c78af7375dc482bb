"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.messages import MessagesService
from xllm_server.protocol.messages import CountTokensRequest, MessagesRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def messages_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["generation"])
    service = MessagesService(state)

    @router.post("/v1/messages", openapi_extra=json_body(MessagesRequest))
    async def create_message(http: Request) -> Response:
        """Answer a conversation, whole or streamed, in Anthropic's shapes."""
        return await service.respond(http)

    @router.post("/v1/messages/count_tokens", openapi_extra=json_body(CountTokensRequest))
    async def count_message_tokens(http: Request) -> Response:
        """Count the tokens of a conversation."""
        return await service.count_tokens(http)

    return router
