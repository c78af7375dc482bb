"""GET / and /web/*: the page for people, static files of this package. Knows nothing of what they do.

The policy that goes with them lets a browser load nothing from elsewhere and run nothing that is not in these files.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from xllm_server.errors import UnknownRoute
from xllm_server.state import ServerState

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def page_files() -> dict[str, bytes]:
    """Return name -> content of the page's files."""
    folder = files("xllm_server") / "web"
    return {
        entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.rpartition(".")[2] in MEDIA_TYPES
    }


def web_router(_: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        """Show the page."""
        return page_file("index.html")

    @router.get("/web/{name}")
    async def file(name: str) -> Response:
        """Return one of the page's files."""
        return page_file(name)

    return router


def page_file(name: str) -> Response:
    """Return one of the page's files; raises `UnknownRoute` when there is no such file."""
    content = page_files().get(name)
    if content is None:
        raise UnknownRoute(f"There is no /web/{name[:200]} here.")
    return Response(content, headers=HEADERS, media_type=MEDIA_TYPES[name.rpartition(".")[2]])
