"""How Qwen2-VL and Qwen2.5-VL take images and videos: any size, in whole merge units. Knows nothing of towers.

An image of H x W pixels, resized to multiples of patch_size * merge_size, becomes one token a merge unit. Frames of a video
are padded to pairs by repeating the last one. Sources: the models' own processors, as transformers has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import PIL.Image

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest, ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.multimodal import MediaItem, PositionRule, PromptMedia, multimodal_positions
from xllm_framework.multimodal.media_item import MediaKind, hash_media
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.processors.media_processor import Clip, ProcessedMedia
from xllm_runtime.processors.resize import Pixels, resize_image, smart_size
from xllm_runtime.processors.settings import Defaults, MediaSettings, load_image_settings, load_video_settings

IMAGE_DEFAULTS = Defaults(56 * 56, 28 * 28 * 1280)
VIDEO_DEFAULTS = Defaults(128 * 28 * 28, 28 * 28 * 768)


class QwenVLProcessor:
    """`MediaProcessor` of the family.

    Raises:
        ModelLoadError: config.json does not name the model's image and video tokens, or settings are broken.
    """

    def __init__(self, config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer) -> None:
        self.image = load_image_settings(files, IMAGE_DEFAULTS)
        self.video = load_video_settings(files, VIDEO_DEFAULTS)
        self.targets = {"image": _token_id(args, "image_token_id"), "video": _token_id(args, "video_token_id")}
        self.marks = {token_id: kind for kind, token_id in self.targets.items()}
        vision = args.raw.get("vision_config") or {}
        self._tokens_per_second = float(vision.get("tokens_per_second") or 0.0)
        self._config = config

    def process_image(self, image: PIL.Image.Image, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_image`."""
        settings = self.image
        height, width = self._size(image.height, image.width, settings, place)
        item = media_item("image", resize_image(image, height, width)[None], settings)
        return ProcessedMedia(item, [self.targets["image"]] * num_tokens(item, settings))

    def process_video(self, clip: Clip, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_video`."""
        raise InvalidRequest(f"{place} is a video, which this model does not take here.", "messages")

    def place(self, num_tokens: int, items: list[MediaItem], time_steps: Sequence[float]) -> PromptMedia:
        """See `MediaProcessor.place`."""
        rule = PositionRule(self.image.merge_size)
        positions, delta = multimodal_positions(num_tokens, items, rule, time_steps)
        return PromptMedia(items, positions.tobytes(), delta)

    def frame_rate(self) -> float:
        """See `MediaProcessor.frame_rate`."""
        return self._config.video_fps or 2.0

    @staticmethod
    def _size(height: int, width: int, settings: MediaSettings, place: str) -> tuple[int, int]:
        unit = settings.patch_size * settings.merge_size
        return smart_size(height, width, unit, settings.min_pixels, settings.max_pixels, place)


def media_item(kind: MediaKind, frames: Pixels, settings: MediaSettings, details: str = "") -> MediaItem:
    """Return the item of `frames` uint8 [frames, height, width, 3], resized already."""
    num_frames, height, width, _ = frames.shape
    grid = (
        max(num_frames // settings.temporal_patch_size, 1),
        height // settings.patch_size,
        width // settings.patch_size,
    )
    content = np.ascontiguousarray(frames).tobytes()
    return MediaItem(kind, hash_media(kind, grid, content, details), grid, frames.shape, content)


def num_tokens(item: MediaItem, settings: MediaSettings) -> int:
    """Return how many place-holders an item of this family has."""
    frames, height, width = item.grid
    return frames * height * width // settings.merge_size**2


def _token_id(args: ModelArgs, name: str) -> int:
    token_id = args.raw.get(name)
    if not isinstance(token_id, int) or not 0 <= token_id < args.vocab_size:
        raise ModelLoadError(f"{name} in config.json is {token_id!r}, not a token id of the model.")
    return token_id
