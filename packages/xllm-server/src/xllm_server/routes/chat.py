"""POST /v1/chat/completions. Knows nothing of bodies: the service reads and checks them completely."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.chat import ChatService
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def chat_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["generation"])
    service = ChatService(state)

    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatCompletionRequest))
    async def create_chat_completion(http: Request) -> Response:
        """Answer a conversation, whole or streamed."""
        return await service.respond(http)

    return router
