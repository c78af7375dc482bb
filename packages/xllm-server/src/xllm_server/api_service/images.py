"""Images: prompts (and images) in, images out, whole or with their progress as events. Knows nothing of how they are drawn.

admit -> read -> decode and check (thread pool) -> submit -> encode (thread pool) -> answer
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from xllm_framework.errors import XLLMError
from xllm_framework.request.image_output import GeneratedImage, ImageOutput
from xllm_framework.request.image_params import RawImage
from xllm_runtime.master import PreparedRequest
from xllm_runtime.master.dit_request import ImageRequest, PreparedImages
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.image_files import ImageStore, decode_base64, decode_image, encode_image
from xllm_server.api_service.image_forms import read_edit_form
from xllm_server.api_service.service import CLIENT_LEFT
from xllm_server.errors import ServerFault
from xllm_server.limits import read_body
from xllm_server.protocol.decode import check_content_type, decode_request
from xllm_server.protocol.engine_request import EngineRequest
from xllm_server.protocol.images import (
    ImageCompleted,
    ImageData,
    ImageEditRequest,
    ImageFields,
    ImageGenerationRequest,
    ImageProgress,
    ImagesAnswer,
    OutputFormat,
    ReferenceImage,
    ReferenceImageAnswer,
    ReferenceImageRequest,
    parse_size,
)
from xllm_server.request_deadline import shorten_timeout
from xllm_server.sse import EventStream, error_event, named_event
from xllm_server.state import ServerState

if TYPE_CHECKING:
    from xllm_runtime.master.dit import DiTMaster

FILES_PATH = "/v1/images/files"
logger = logging.getLogger(__name__)


class ImageService:
    """Serves the image routes of the dit backend."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._master = cast("DiTMaster", state.master)
        self.store = ImageStore()
        """What answers with `response_format` url refer to."""

    async def generate(self, http: Request) -> Response:
        """Draw an `ImageGenerationRequest`; raises `XLLMError` when it is refused or fails before anything was sent."""
        body = decode_request(await self._json(http), ImageGenerationRequest)
        return await self._respond(http, body, lambda: self._asked(body, (), None))

    async def edit(self, http: Request) -> Response:
        """Draw an `ImageEditRequest`, JSON or a form; raises as `generate` does."""
        media_type = http.headers.get("content-type", "").split(";")[0].strip().lower()
        files: list[bytes] = []
        mask: bytes | None = None
        if media_type == "multipart/form-data":
            content = await read_body(http, self._state.config.max_body_bytes)
            body, files, mask = await read_edit_form(http.headers, content)
        else:
            body = decode_request(await self._json(http), ImageEditRequest)

        def asked() -> ImageRequest:
            texts = [body.image] if isinstance(body.image, str) else body.image or []
            images = files or [decode_base64(text, "image") for text in texts]
            shape = mask if mask is not None or body.mask is None else decode_base64(body.mask, "mask")
            return self._asked(body, images, shape)

        return await self._respond(http, body, asked)

    async def generate_as_before(self, http: Request) -> Response:
        """Draw a `ReferenceImageRequest`; raises as `generate` does."""
        body = decode_request(await self._json(http), ReferenceImageRequest)
        self._check(http, body)
        body.input.check()
        body.parameters.check()
        generation, prepared = await self._start(http, body, lambda: self._asked_as_before(body), is_streamed=False)
        try:
            outputs = cast("list[ImageOutput]", await generation.results())
        finally:
            generation.close()
        if not outputs:
            return Response(status_code=CLIENT_LEFT)
        contents = await self._in_pool(lambda: [encode_image(image.raw, "png", None) for image in outputs[0].images])
        results = [
            ReferenceImage(base64.b64encode(content).decode(), image.raw.width, image.raw.height, image.seed)
            for content, image in zip(contents, outputs[0].images, strict=True)
        ]
        answer = ReferenceImageAnswer(
            id=f"imggen-{prepared.client_request_id}",
            created=int(time.time()),
            model=self._master.model_name,
            output={"results": results},
        )
        return _json_response(answer)

    async def _json(self, http: Request) -> bytes:
        check_content_type(http.headers.get("content-type"))
        return await read_body(http, self._state.config.max_body_bytes)

    def _check(self, http: Request, body: EngineRequest) -> None:
        self._state.check_model(body.model)
        body.check_engine_fields()
        shorten_timeout(body, http.headers)

    def _asked(self, body: ImageFields, images: Sequence[bytes], mask: bytes | None) -> ImageRequest:
        """Return what a body asks for, its images decoded."""
        width, height = parse_size(body.size)
        return ImageRequest(
            prompt=body.prompt,
            negative_prompt=body.negative_prompt,
            width=width,
            height=height,
            num_images=1 if body.n is None else body.n,
            num_inference_steps=body.num_inference_steps,
            guidance_scale=body.guidance_scale,
            true_cfg_scale=body.true_cfg_scale,
            seed=body.seed,
            max_sequence_length=body.max_sequence_length,
            strength=body.strength,
            images=tuple(self._decoded(content, "image") for content in images),
            mask=None if mask is None else self._decoded(mask, "mask", is_mask=True),
            cache_policy=body.cache_policy,
        )

    def _asked_as_before(self, body: ReferenceImageRequest) -> ImageRequest:
        given, parameters = body.input, body.parameters
        width, height = parse_size(parameters.size)
        texts = [text for text in (given.image, given.control_image, *(given.images or ())) if text is not None]
        mask = given.mask_image
        return ImageRequest(
            prompt=given.prompt,
            prompt_2=given.prompt_2,
            negative_prompt=given.negative_prompt,
            negative_prompt_2=given.negative_prompt_2,
            width=width,
            height=height,
            num_images=1 if parameters.num_images_per_prompt is None else parameters.num_images_per_prompt,
            num_inference_steps=parameters.num_inference_steps,
            guidance_scale=parameters.guidance_scale,
            true_cfg_scale=parameters.true_cfg_scale,
            seed=parameters.seed,
            max_sequence_length=parameters.max_sequence_length,
            strength=parameters.strength,
            images=tuple(self._decoded(decode_base64(text, "image"), "image") for text in texts),
            mask=None if mask is None else self._decoded(decode_base64(mask, "mask_image"), "mask_image", is_mask=True),
            cache_policy=parameters.cache_policy,
        )

    def _decoded(self, content: bytes, param: str, *, is_mask: bool = False) -> RawImage:
        return decode_image(content, self._master.config.dit.dit_max_input_pixels, param, is_mask=is_mask)

    async def _respond(self, http: Request, body: ImageFields, asked: Callable[[], ImageRequest]) -> Response:
        self._check(http, body)
        body.check()
        generation, _ = await self._start(http, body, asked, is_streamed=bool(body.stream))
        try:
            if body.stream:
                await generation.wait_first()
                kind = "image_edit" if isinstance(body, ImageEditRequest) else "image_generation"
                return EventStream(self._events(http, body, generation, kind), generation.close)
            outputs = cast("list[ImageOutput]", await generation.results())
            images = outputs[0].images if outputs else []
            contents = await self._in_pool(lambda: [self._file(image, body) for image in images])
        except BaseException:
            generation.close()
            raise
        generation.close()
        if not outputs:
            return Response(status_code=CLIENT_LEFT)
        answer = ImagesAnswer(
            created=int(time.time()),
            data=[
                ImageData(seed=image.seed, **self._reference(http, body, content))
                for image, content in zip(images, contents, strict=True)
            ],
            output_format=_format(body),
            size=f"{images[0].raw.width}x{images[0].raw.height}",
            notes=body.notes(),
        )
        return _json_response(answer)

    async def _start(
        self, http: Request, body: EngineRequest, asked: Callable[[], ImageRequest], *, is_streamed: bool
    ) -> tuple[Generation, PreparedImages]:
        """Decode, check and submit a request."""
        if body.request_id is not None and not http.state.has_request_id:
            http.state.request_id = body.request_id
        prepared: list[PreparedImages] = []

        def prepare() -> list[PreparedRequest]:
            prepared.append(self._master.prepare_images(asked(), **body.options(http.state.request_id)))
            return cast("list[PreparedRequest]", prepared)

        generation = Generation(self._state, http)
        try:
            await generation.start(prepare, is_streamed=is_streamed)
        except BaseException:
            generation.close()
            raise
        return generation, prepared[0]

    async def _events(
        self, http: Request, body: ImageFields, generation: Generation, kind: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; an error becomes the last one."""
        try:
            while not generation.is_finished:
                outputs = cast("list[tuple[int, ImageOutput]]", await generation.next())
                for _, output in outputs:
                    if output.images:
                        for image in output.images:
                            yield await self._completed(http, body, image, kind)
                    elif not output.finished:
                        progress = ImageProgress(
                            type=f"{kind}.progress",
                            step=output.num_steps_done,
                            num_steps=output.num_steps,
                            position=output.position,
                        )
                        yield named_event(progress.type, progress)
        except XLLMError as error:
            yield error_event(error)
        except Exception:
            logger.exception("A stream of images failed.")
            yield error_event(ServerFault("The server failed to encode these images; its log says why."))

    async def _completed(self, http: Request, body: ImageFields, image: GeneratedImage, kind: str) -> bytes:
        content = await self._in_pool(lambda: self._file(image, body))
        event = ImageCompleted(
            type=f"{kind}.completed",
            created_at=int(time.time()),
            output_format=_format(body),
            size=f"{image.raw.width}x{image.raw.height}",
            quality="auto",
            background="opaque",
            index=image.index,
            seed=image.seed,
            **self._reference(http, body, content),
        )
        return named_event(event.type, event)

    @staticmethod
    def _file(image: GeneratedImage, body: ImageFields) -> bytes:
        return encode_image(image.raw, _format(body), body.output_compression)

    def _reference(self, http: Request, body: ImageFields, content: bytes) -> dict[str, Any]:
        """Return how an answer holds a file: itself, or where it can be fetched."""
        if body.response_format != "url":
            return {"b64_json": base64.b64encode(content).decode()}
        name = self.store.put(content, _format(body))
        return {"url": str(http.base_url).rstrip("/") + f"{FILES_PATH}/{name}"}

    async def _in_pool(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._state.executor, work)


def _format(body: ImageFields) -> OutputFormat:
    return body.output_format or "png"


def _json_response(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
