"""POST /v1/images/generations, /v1/images/edits and /v1/image/generation, GET /v1/images/files/{name}. Knows nothing of bodies."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from xllm_server.api_service.images import FILES_PATH, ImageService
from xllm_server.errors import UnknownRoute
from xllm_server.protocol.images import ImageEditRequest, ImageGenerationRequest, ReferenceImageRequest
from xllm_server.protocol.schema import json_body
from xllm_server.state import ServerState


def images_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["images"])
    service = ImageService(state)

    @router.post("/v1/images/generations", openapi_extra=json_body(ImageGenerationRequest))
    async def create_image(http: Request) -> Response:
        """Draw a prompt."""
        return await service.generate(http)

    @router.post("/v1/images/edits", openapi_extra=json_body(ImageEditRequest))
    async def edit_image(http: Request) -> Response:
        """Draw a given image anew, after a prompt; JSON, or a form with files."""
        return await service.edit(http)

    @router.post("/v1/image/generation", openapi_extra=json_body(ReferenceImageRequest))
    async def create_image_as_before(http: Request) -> Response:
        """Draw a prompt, in the form of xLLM's C++ predecessor."""
        return await service.generate_as_before(http)

    @router.get(f"{FILES_PATH}/{{name}}")
    async def image_file(name: str) -> Response:
        """Return an image that an answer referred to, while it is kept."""
        stored = service.store.get(name)
        if stored is None:
            raise UnknownRoute(f"The image {name[:100]!r} is not kept (any more).")
        return Response(stored.content, media_type=stored.media_type)

    return router
