"""GET /health, /metrics and /version: what operators and probes read. None of them waits for anything."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from xllm_server import __version__
from xllm_server.metrics import CONTENT_TYPE
from xllm_server.state import ServerState


def operations_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> Response:
        """200 while requests are served, else 503 with the reason."""
        reason = state.health()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unhealthy", "reason": reason}, 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """All metrics in Prometheus' text format."""
        return Response(state.metrics.exposition(), media_type=CONTENT_TYPE)

    @router.get("/version")
    async def version() -> Response:
        """The server's version."""
        return JSONResponse({"version": __version__})

    return router
