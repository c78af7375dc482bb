"""POST /v1/responses, and the answers that are kept under it. Knows nothing of bodies."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xllm_server.api_service.responses import ResponsesService
from xllm_server.protocol.responses import ResponsesRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def responses_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["generation"])
    service = ResponsesService(state)

    @router.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
    async def create_response(http: Request) -> Response:
        """Answer a text or a conversation, whole or streamed."""
        return await service.respond(http)

    @router.get("/v1/responses/{response_id}")
    async def retrieve_response(response_id: str) -> Response:
        """Return an answer that is still kept."""
        return Response(msgspec.json.encode(service.retrieve(response_id)), media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str) -> Response:
        """Forget an answer."""
        service.remove(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    return router
