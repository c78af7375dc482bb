"""Bodies and answers of the image routes: OpenAI's generations and edits, and the predecessor's own. Knows nothing of files.

Fields of ours beside OpenAI's (seed, steps, guidance, negative prompt) have the names that the predecessor gave them.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.engine_request import EngineRequest, Int64

OutputFormat = Literal["png", "jpeg", "webp"]
_SIZE = re.compile(r"(\d{1,6})\s*[xX*]\s*(\d{1,6})")
IGNORED = ("quality", "style", "background", "moderation", "input_fidelity", "partial_images")
"""OpenAI's fields that a local model has no part for; the answer's `notes` say so when they are set."""


TENSOR_INPUTS = {
    "prompt_embed": "send prompt as text",
    "pooled_prompt_embed": "send prompt as text",
    "negative_prompt_embed": "send negative_prompt as text",
    "negative_pooled_prompt_embed": "send negative_prompt as text",
    "latent": "send a seed",
    "masked_image_latent": "send image and mask_image",
}
"""Tensors of the predecessor's `input` -> what to send instead."""


class ImageFields(EngineRequest, kw_only=True):
    """What generations and edits share."""

    prompt: str
    n: Int64 | None = None
    size: str | None = None
    """As 1024x768; auto or nothing takes the model's own."""
    response_format: Literal["url", "b64_json"] | None = None
    """OpenAI's older field; b64_json unless told otherwise."""
    output_format: OutputFormat | None = None
    output_compression: Int64 | None = None
    """Quality of jpeg and webp, from 0 to 100."""
    user: str | None = None
    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    partial_images: Int64 | None = None
    negative_prompt: str | None = None
    num_inference_steps: Int64 | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    seed: Int64 | None = None
    max_sequence_length: Int64 | None = None
    strength: float | None = None
    cache_policy: str | None = None
    """Step cache: None, FBCache, TaylorSeer, FBCacheTaylorSeer or ResidualCache."""

    def check(self) -> None:
        """Check what the model has no part in.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_engine_fields()
        if self.output_compression is not None and not 0 <= self.output_compression <= 100:
            raise InvalidRequest("output_compression must be from 0 to 100.", "output_compression")

    def notes(self) -> list[str]:
        """Say which fields are set and mean nothing here."""
        ignored = [name for name in IGNORED if getattr(self, name) not in (None, "auto")]
        return [f"{name} is ignored: a local model has no part for it." for name in ignored]


class ImageGenerationRequest(ImageFields, kw_only=True):
    """Body of POST /v1/images/generations."""


class ImageEditRequest(ImageFields, kw_only=True):
    """Body of POST /v1/images/edits as JSON, images in base64 or as data URLs; multipart forms have the same fields."""

    image: str | list[str] | None = None
    mask: str | None = None


class ReferenceImageInput(msgspec.Struct, kw_only=True):
    """`input` of the predecessor's route; images in base64. Its tensors are refused, whatever they hold."""

    prompt: str = ""
    prompt_2: str | None = None
    negative_prompt: str | None = None
    negative_prompt_2: str | None = None
    image: str | None = None
    mask_image: str | None = None
    control_image: str | None = None
    images: list[str] | None = None
    prompt_embed: Any = None
    pooled_prompt_embed: Any = None
    negative_prompt_embed: Any = None
    negative_pooled_prompt_embed: Any = None
    latent: Any = None
    masked_image_latent: Any = None

    def check(self) -> None:
        """Refuse what would be drawn from tensors.

        Raises:
            InvalidRequest: `param` names the field.
        """
        for name, instead in TENSOR_INPUTS.items():
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"{name} is a tensor, which this server does not take; {instead}.", f"input.{name}"
                )


class ReferenceImageParameters(msgspec.Struct, kw_only=True):
    """`parameters` of the predecessor's route."""

    size: str | None = None
    num_inference_steps: Int64 | None = None
    true_cfg_scale: float | None = None
    guidance_scale: float | None = None
    num_images_per_prompt: Int64 | None = None
    seed: Int64 | None = None
    max_sequence_length: Int64 | None = None
    strength: float | None = None
    cache_policy: str | None = None
    enable_cfg_renorm: bool | None = None
    cfg_renorm_min: float | None = None

    def check(self) -> None:
        """Refuse what no pipeline here computes.

        Raises:
            InvalidRequest: `param` names the field.
        """
        if self.enable_cfg_renorm:
            raise InvalidRequest(
                "enable_cfg_renorm is not computed here; guided predictions are scaled as each model's pipeline in "
                "diffusers scales them.",
                "parameters.enable_cfg_renorm",
            )


class ReferenceImageRequest(EngineRequest, kw_only=True):
    """Body of POST /v1/image/generation."""

    input: ReferenceImageInput
    parameters: ReferenceImageParameters = msgspec.field(default_factory=ReferenceImageParameters)
    user: str | None = None


class ImageData(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One image of an answer."""

    b64_json: str | None = None
    url: str | None = None
    seed: int | None = None
    """Draws this image again, whatever else is drawn."""


class ImagesAnswer(msgspec.Struct, kw_only=True):
    """Answer of generations and edits."""

    created: int
    data: list[ImageData]
    output_format: OutputFormat
    size: str
    notes: list[str] = []


class ImageProgress(msgspec.Struct, kw_only=True):
    """Event of a stream: how far a request is."""

    type: str
    step: int
    num_steps: int
    position: int | None
    """Requests in front of it in the queue, while it waits."""


class ImageCompleted(msgspec.Struct, kw_only=True):
    """Event of a stream: an image is done."""

    type: str
    created_at: int
    output_format: OutputFormat
    size: str
    quality: str
    background: str
    index: int
    seed: int
    b64_json: str | None = None
    url: str | None = None
    usage: dict[str, Any] = {}


class ReferenceImage(msgspec.Struct):
    """One of the predecessor's results."""

    image: str
    width: int
    height: int
    seed: int


class ReferenceImageAnswer(msgspec.Struct, kw_only=True):
    """Answer of the predecessor's route."""

    id: str
    object: str = "image.generation"
    created: int
    model: str
    output: dict[str, list[ReferenceImage]]


def parse_size(size: str | None) -> tuple[int | None, int | None]:
    """Return width and height, or None for both where the model's own is meant.

    Raises:
        InvalidRequest: it is no size.
    """
    if size is None or size == "auto":
        return None, None
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise InvalidRequest(f"size must be as 1024x768, not {size[:50]!r}.", "size")
    return int(match[1]), int(match[2])
