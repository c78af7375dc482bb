"""Images of the offline API: many prompts in, all images out. Knows nothing of how requests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import RequestOutput
from xllm_framework.request.image_output import ImageOutput
from xllm_framework.request.image_params import RawImage
from xllm_runtime.master.dit import DiTMaster
from xllm_runtime.master.dit_request import ImageRequest
from xllm_runtime.master.prepared_request import PreparedRequest

Run = Callable[[Callable[[int], PreparedRequest], int, bool | None], list[RequestOutput]]
"""Prepares, submits and waits for requests by index; `LLM._run`."""


def generate_images(
    run: Run,
    master: object,
    prompts: str | Sequence[str],
    images: Sequence[Any],
    mask: Any,
    use_tqdm: bool | None,
    asked: dict[str, Any],
) -> list[ImageOutput]:
    """See `LLM.generate_images`."""
    if not isinstance(master, DiTMaster):
        raise InvalidRequest("This model does not draw images; name one in diffusers' layout.", "model")
    drawing_master: DiTMaster = master
    batch = [prompts] if isinstance(prompts, str) else list(prompts)
    given = tuple(_raw(image) for image in images)
    where = None if mask is None else _raw(mask)

    def prepare(index: int) -> PreparedRequest:
        request = ImageRequest(prompt=batch[index], images=given, mask=where, **asked)
        return cast("PreparedRequest", drawing_master.prepare_images(request, request_id=str(index)))

    return [_image_output(output) for output in run(prepare, len(batch), use_tqdm)]


def _raw(image: Any) -> RawImage:
    """Return Pillow's image or an array as requests carry it.

    Raises:
        InvalidRequest: it is no uint8 [height, width] or [height, width, 3].
    """
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise InvalidRequest(
            "Images must be uint8 arrays of shape [height, width, 3], masks [height, width].", "images"
        )
    return RawImage(pixels.shape[1], pixels.shape[0], pixels.tobytes(), 1 if pixels.ndim == 2 else 3)


def _image_output(output: RequestOutput) -> ImageOutput:
    """Return the output of a request for images; one that got no further than to the front side has none."""
    if isinstance(output, ImageOutput):
        return output
    return ImageOutput(
        output.request_id, [], finished=True, num_prompt_tokens=0, error=output.error, error_kind=output.error_kind
    )
