"""GET /v1/models and /v1/models/{id}, POST /v2/repository/index. Knows one model: the master's."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from xllm_server.state import ServerState


def models_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["models"])

    def describe() -> dict[str, Any]:
        return {
            "id": state.master.model_name,
            "object": "model",
            "created": state.created,
            "owned_by": "xllm",
            "max_model_len": state.master.ready.max_model_len,
        }

    @router.get("/v1/models")
    async def list_models() -> Response:
        """List what is served."""
        return JSONResponse({"object": "list", "data": [describe()]})

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> Response:
        """Describe one model; its name may hold slashes."""
        state.check_model(model_id)
        return JSONResponse(describe())

    @router.post("/v2/repository/index")
    async def index() -> Response:
        """List what is served, as Triton does."""
        return JSONResponse([{"name": state.master.model_name, "version": "1", "state": "READY", "reason": ""}])

    return router
