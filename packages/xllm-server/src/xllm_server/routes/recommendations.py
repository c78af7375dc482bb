"""The rec backend's routes: POST /v1/completions, /v1/chat/completions, /catalogue and /catalogue/rollback."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xllm_framework.request.rec_messages import CatalogueChanged
from xllm_runtime.master.rec import RecMaster
from xllm_server.api_service.recommendation import RecommendationService, in_threads
from xllm_server.limits import read_body
from xllm_server.protocol.decode import decode_request
from xllm_server.protocol.recommendation import CatalogueRequest, ChatRecommendationRequest, RecommendationRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def recommendations_router(state: ServerState) -> APIRouter:
    """Return the routes that recommend."""
    router = APIRouter(tags=["recommendation"])
    service = RecommendationService(state)

    @router.post("/v1/completions", openapi_extra=json_body(RecommendationRequest))
    async def create_completion(http: Request) -> Response:
        """Recommend what comes after one or several histories."""
        return await service.complete(http)

    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatRecommendationRequest))
    async def create_chat_completion(http: Request) -> Response:
        """Recommend what comes after a history that is told as a conversation."""
        return await service.chat(http)

    return router


def catalogue_router(state: ServerState) -> APIRouter:
    """Return the routes that change the catalogue for everybody."""
    router = APIRouter(tags=["control"])
    master = cast("RecMaster", state.master)

    @router.post("/catalogue", openapi_extra=json_body(CatalogueRequest))
    async def replace(http: Request) -> Response:
        """Serve the items of another file from now on; searches under way keep theirs."""
        body = decode_request(await read_body(http, state.config.max_body_bytes), CatalogueRequest)
        path = Path(body.path)
        return _told(await in_threads(state, lambda: master.change_catalogue(path, is_extended=body.extended)))

    @router.post("/catalogue/rollback")
    async def roll_back() -> Response:
        """Serve the catalogue before the newest again."""
        return _told(await in_threads(state, lambda: master.change_catalogue(None)))

    return router


def _told(changed: CatalogueChanged) -> Response:
    return JSONResponse(
        {"version": changed.version, "num_items": changed.num_items, "num_token_lists": changed.num_paths}
    )
