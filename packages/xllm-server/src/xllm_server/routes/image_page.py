"""GET / and /web/*: the page of an image model. Knows nothing of what it does; files and policy are the page's of `web`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from xllm_server.routes.web import page_file
from xllm_server.state import ServerState


def image_page_router(_: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        """Show the page."""
        return page_file("images.html")

    @router.get("/web/{name}")
    async def file(name: str) -> Response:
        """Return one of the page's files."""
        return page_file(name)

    return router
