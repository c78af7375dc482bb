"""From what a caller asks of an image model to a request that can be drawn: defaults, limits, checks. Knows nothing of HTTP.

Every value is checked against the model and the options here, before anything is sent; nothing is computed.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from dataclasses import dataclass
from typing import Any, get_args

from xllm_framework.config.dit import DiTConfig
from xllm_framework.errors import InvalidRequest
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_framework.request.image_messages import AddImages
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_framework.step_cache import CachePolicy

MAX_PROMPT_CHARACTERS = 32768
MAX_GUIDANCE = 1000.0
MAX_EDITED_IMAGES = 8
"""Models that take several images are trained with up to three; each adds a megapixel's tokens to every step."""
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What a caller may say; None takes the model's or the server's own."""

    prompt: str
    prompt_2: str | None = None
    negative_prompt: str | None = None
    negative_prompt_2: str | None = None
    width: int | None = None
    height: int | None = None
    num_images: int = 1
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    seed: int | None = None
    max_sequence_length: int | None = None
    strength: float | None = None
    images: tuple[RawImage, ...] = ()
    mask: RawImage | None = None
    cache_policy: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedImages:
    """A checked request; can be submitted once."""

    message: AddImages
    client_request_id: str | None = None
    """The caller's own id, for outputs; it may repeat."""

    @property
    def request_id(self) -> str:
        """The id that `cancel` takes; unique."""
        return self.message.request_id

    @property
    def params(self) -> ImageParams:
        """What is drawn, defaults filled in."""
        return self.message.params


class ImageRequestFactory:
    """Makes requests for one pipeline. Thread-safe.

    Args:
        seed: of requests that bring none; 0 draws one for each.
    """

    def __init__(self, pipeline: ImagePipeline, config: DiTConfig, seed: int = 0) -> None:
        self._pipeline, self._config, self._seed = pipeline, config, seed
        self._numbers = itertools.count()

    def prepare(
        self,
        asked: ImageRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        **_: Any,
    ) -> PreparedImages:
        """Check a request and fill in what it leaves out.

        Raises:
            InvalidRequest: a value cannot be served; `param` names the field.
        """
        message = AddImages(
            f"{request_id or 'images'}-{next(self._numbers)}",
            self._params(asked),
            time.monotonic(),
            priority,
            deadline_s,
        )
        return PreparedImages(message, request_id)

    def _params(self, asked: ImageRequest) -> ImageParams:
        pipeline = self._pipeline
        self._check_prompt(asked)
        width, height = self._size(asked)
        self._check_inputs(asked)
        limit, default_length = pipeline.max_sequence_length, pipeline.default_max_sequence_length
        return ImageParams(
            prompt=asked.prompt,
            width=width,
            height=height,
            num_steps=_whole(self._num_steps(asked), "num_inference_steps", 1, self._config.dit_max_num_steps),
            prompt_2=asked.prompt_2 or "",
            negative_prompt=asked.negative_prompt,
            negative_prompt_2=asked.negative_prompt_2 or "",
            guidance_scale=_number(
                asked.guidance_scale, pipeline.default_guidance_scale, "guidance_scale", MAX_GUIDANCE
            ),
            true_cfg_scale=_number(
                asked.true_cfg_scale, pipeline.default_true_cfg_scale, "true_cfg_scale", MAX_GUIDANCE
            ),
            num_images=_whole(asked.num_images, "n", 1, self._config.dit_max_images_per_request),
            seed=self._seed_of(asked),
            max_sequence_length=_whole(_or(asked.max_sequence_length, default_length), "max_sequence_length", 1, limit),
            strength=self._strength(asked),
            images=list(asked.images),
            mask=asked.mask,
            cache=self._config.step_cache(self._cache_policy(asked)),
        )

    def _check_prompt(self, asked: ImageRequest) -> None:
        texts = {
            "prompt": asked.prompt,
            "prompt_2": asked.prompt_2,
            "negative_prompt": asked.negative_prompt,
            "negative_prompt_2": asked.negative_prompt_2,
        }
        for name, text in texts.items():
            if text is not None and len(text) > MAX_PROMPT_CHARACTERS:
                raise InvalidRequest(f"{name} has {len(text)} characters; at most {MAX_PROMPT_CHARACTERS} fit.", name)
        if not asked.prompt:
            raise InvalidRequest("prompt must not be empty.", "prompt")
        labels = self._pipeline.labels
        if labels and asked.prompt not in labels:
            known = ", ".join(list(labels)[:40])
            raise InvalidRequest(f"This model draws classes; prompt must be one of: {known}.", "prompt")

    def _size(self, asked: ImageRequest) -> tuple[int, int]:
        pipeline = self._pipeline
        width = pipeline.default_size[0] if asked.width is None else asked.width
        height = pipeline.default_size[1] if asked.height is None else asked.height
        if pipeline.has_fixed_size and (width, height) != pipeline.default_size:
            raise InvalidRequest(
                f"This model draws images of {pipeline.default_size[0]}x{pipeline.default_size[1]} only.", "size"
            )
        for name, side in (("width", width), ("height", height)):
            if not 0 < side <= pipeline.max_size:
                raise InvalidRequest(f"The {name} must be from 1 to {pipeline.max_size} pixels, not {side}.", "size")
            if side % pipeline.size_multiple:
                raise InvalidRequest(
                    f"The {name} must be a multiple of {pipeline.size_multiple} pixels, not {side}.", "size"
                )
        limit = self._config.dit_generation_image_area_max
        if limit and width * height > limit:
            raise InvalidRequest(
                f"An image of {width}x{height} has more than {limit} pixels (dit_generation_image_area_max).", "size"
            )
        return width, height

    def _check_inputs(self, asked: ImageRequest) -> None:
        wanted = self._pipeline.image_input
        fewest = 0 if wanted == "none" else 1
        most = MAX_EDITED_IMAGES if wanted == "edit_several" else fewest
        if not fewest <= len(asked.images) <= most:
            what = "no image" if most == 0 else "one image" if most == 1 else f"one to {most} images"
            raise InvalidRequest(f"This model takes {what}, not {len(asked.images)}.", "image")
        if wanted == "fill" and asked.mask is None:
            raise InvalidRequest("This model needs a mask of what to draw anew.", "mask")
        if wanted != "fill" and asked.mask is not None:
            raise InvalidRequest("This model takes no mask.", "mask")

    def _strength(self, asked: ImageRequest) -> float:
        if asked.strength is None:
            return 1.0
        if self._pipeline.image_input != "fill":
            raise InvalidRequest("This model takes no strength.", "strength")
        num_steps = self._num_steps(asked)
        if not 0 < asked.strength <= 1 or num_steps * asked.strength < 1:
            raise InvalidRequest(
                f"strength must be above 0, at most 1, and leave at least one of {num_steps} steps.", "strength"
            )
        return asked.strength

    def _num_steps(self, asked: ImageRequest) -> int:
        return _or(asked.num_inference_steps, self._pipeline.default_num_steps)

    def _seed_of(self, asked: ImageRequest) -> int:
        if asked.seed is None:
            return self._seed or int.from_bytes(os.urandom(4), "little")
        return _whole(asked.seed, "seed", 0, MAX_SEED - self._config.dit_max_images_per_request)

    @staticmethod
    def _cache_policy(asked: ImageRequest) -> CachePolicy | None:
        known: tuple[CachePolicy, ...] = get_args(CachePolicy)
        for policy in known:
            if policy == asked.cache_policy:
                return policy
        if asked.cache_policy is not None:
            raise InvalidRequest(f"cache_policy must be one of {', '.join(known)}.", "cache_policy")
        return None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _whole(value: int, name: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {value}.", name)
    return value


def _number(value: float | None, default: float, name: str, high: float) -> float:
    if value is None:
        return default
    if not (math.isfinite(value) and 0 <= value <= high):
        raise InvalidRequest(f"{name} must be from 0 to {high:g}, not {value}.", name)
    return float(value)
