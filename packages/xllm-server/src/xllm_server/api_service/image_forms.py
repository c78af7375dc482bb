"""Multipart forms of the edits route, as OpenAI's clients send them. Knows nothing of images' formats."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.decode import convert_request
from xllm_server.protocol.images import ImageEditRequest

MAX_FILES = 16
MAX_FIELDS = 64
MAX_PART_BYTES = 1024 * 1024
"""Of a field that is no file."""
_WHOLE = frozenset(("n", "output_compression", "partial_images", "num_inference_steps", "seed", "max_sequence_length"))
_NUMBERS = frozenset(("guidance_scale", "true_cfg_scale", "strength", "timeout", "priority"))
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


async def read_edit_form(headers: Headers, content: bytes) -> tuple[ImageEditRequest, list[bytes], bytes | None]:
    """Return a form's fields, the files called `image` (or `image[]`), and the one called `mask`.

    Raises:
        InvalidRequest: no form, or a wrong value; `param` names the field.
    """

    async def once() -> AsyncGenerator[bytes, None]:
        yield content

    parser = MultiPartParser(headers, once(), max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_PART_BYTES)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"The form is broken: {error}") from None
    fields: dict[str, Any] = {}
    images: list[bytes] = []
    mask = None
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields[name] = _typed(name, value)
        elif name in ("image", "image[]"):
            images.append(await value.read())
        elif name == "mask":
            mask = await value.read()
    await form.close()
    return convert_request(fields, ImageEditRequest), images, mask


def _typed(name: str, value: str) -> Any:
    """Return a form's text as the type that its field has."""
    try:
        if name in _WHOLE:
            return int(value)
        if name in _NUMBERS:
            return float(value)
    except ValueError:
        raise InvalidRequest(f"{name} must be a number, not {value[:50]!r}.", name) from None
    if name == "stream":
        return _FLAGS.get(value.lower(), value)
    return value
