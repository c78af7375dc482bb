"""How GLM-4.1V to 4.6V take images and videos: images of any size in whole merge units, videos as frames between time stamps.

    <|begin_of_image|><|image|> ... <|end_of_image|>0<|begin_of_image|><|image|> ... <|end_of_image|>1 ...

The template's own brackets stay around all of it, and frames are made of image tokens. A frame here is `temporal_patch_size`
pictures, stamped with the time of the first: GLM-4.1V and 4.5V in whole seconds, GLM-4.6V as "0.5 seconds". Knows nothing of
towers. Source: the models' own processors, as transformers has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import PIL.Image

from xllm_framework.config import MultimodalConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.model.json_file import read_json_object_if_there
from xllm_framework.multimodal import MediaItem
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.processors.media_processor import ProcessedMedia, Video
from xllm_runtime.processors.qwen_vl import (
    QwenVLProcessor,
    frame_rate,
    media_item,
    num_tokens,
    stacked_frames,
    token_id_of,
)
from xllm_runtime.processors.resize import resize_image, smart_video_size
from xllm_runtime.processors.settings import (
    COMBINED_FILE,
    IMAGE_FILE,
    VIDEO_FILE,
    Defaults,
    MediaSettings,
    load_image_settings,
    load_video_settings,
)

IMAGE_DEFAULTS = Defaults(112 * 112, 28 * 28 * 15000)
VIDEO_DEFAULTS = Defaults(112 * 112, 28 * 28 * 2 * 30000)
MAX_DURATION_S = 300
LATER_PREFIX = "Glm46V"
"""With which the names of GLM-4.6V's processors begin, whatever the model is called."""
LATER_RATES = ((30, 3.0), (300, 1.0), (math.inf, 0.5))
"""(seconds up to which, frames a second and merged pair) of GLM-4.6V."""
LATER_MAX_FRAMES, LATER_MAX_DURATION_S = 640, 2400


class Glm4vProcessor(QwenVLProcessor):
    """`MediaProcessor` of the family; raises as `QwenVLProcessor` does."""

    splits_frames = True

    def __init__(self, config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer) -> None:
        super().__init__(config, files, args, tokenizer)
        self.image = load_image_settings(files, IMAGE_DEFAULTS)
        self.video = load_video_settings(files, VIDEO_DEFAULTS)
        self.targets = {"image": self.targets["image"], "video": self.targets["image"]}
        self.is_later = args.model_type == "glm46v" or any(
            name.startswith(LATER_PREFIX) for name in _class_names(files)
        )
        self._tokenizer = tokenizer
        self._brackets = [token_id_of(args, f"image_{name}_token_id") for name in ("start", "end")]

    def process_image(self, image: PIL.Image.Image, place: str, num_images: int = 1) -> ProcessedMedia:
        """See `MediaProcessor.process_image`."""
        settings = self.image
        height, width = _size(settings.temporal_patch_size, (image.height, image.width), settings, place)
        item = media_item("image", resize_image(image, height, width)[None], settings)
        return ProcessedMedia(item, [self.targets["image"]] * num_tokens(item, settings))

    def process_video(self, video: Video, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_video`."""
        settings = self.video
        shape = video.shape(self._choose_frames)
        size = _size(len(shape.indices), (shape.height, shape.width), settings, place)
        stamps = [index / shape.fps for index in shape.indices[:: settings.temporal_patch_size]]
        item = media_item("video", stacked_frames(video, shape, size, settings), settings, stamps)
        return ProcessedMedia(item, self._video_expansion(item))

    def _video_expansion(self, item: MediaItem) -> list[int]:
        """See `QwenVLProcessor._video_expansion`."""
        _, height, width = item.grid
        start, end = self._brackets
        frame = [start, *[self.targets["video"]] * (height * width // self.video.merge_size**2), end]
        expansion: list[int] = []
        for stamp in item.timestamps:
            text = f"{stamp:.1f} seconds" if self.is_later else str(int(stamp))
            expansion += [*frame, *self._tokenizer.encode(text, add_special_tokens=False)]
        return expansion

    def _choose_frames(self, num_frames: int, fps: float) -> list[int]:
        """Take frames by the generation's rule, at most as many as the operator allows, an even number of them."""
        choose = self._later_frames if self.is_later else self._first_frames
        indices = sorted({min(index, num_frames - 1) for index in choose(num_frames, fps)})
        limit = max(self._config.max_video_frames // 2 * 2, 2)
        if len(indices) > limit:
            indices = [indices[int(at)] for at in np.linspace(0, len(indices) - 1, limit)]
        return indices + indices[-1:] * (len(indices) % 2)

    def _first_frames(self, num_frames: int, fps: float) -> list[int]:
        """GLM-4.1V: so many a second, over the whole length where that would be too many."""
        duration, rate = num_frames / fps, frame_rate(self._config, self.video)
        longest = int(self.video.raw.get("max_duration") or MAX_DURATION_S)
        if duration <= longest:
            return [math.ceil(at * fps / rate) for at in range(max(math.floor(duration * rate), 1))]
        count = int(longest * rate)
        if count >= num_frames:
            return list(range(num_frames))
        return [math.ceil(second * fps) for second in np.linspace(0, duration, count)]

    def _later_frames(self, num_frames: int, fps: float) -> list[int]:
        """GLM-4.6V: so many a second as the length allows; evenly where a video has too few or too many."""
        duration, pair = num_frames / fps, self.video.temporal_patch_size
        seconds = min(duration, LATER_MAX_DURATION_S)
        rate = self._config.video_fps or next(rate for limit, rate in LATER_RATES if seconds <= limit)
        count = min(int(seconds * rate * pair), LATER_MAX_FRAMES)
        if num_frames < count:
            return _evenly(0, num_frames - 1, count)
        indices = list(_one_each(num_frames, fps, 1 / (pair * rate), int(duration)))
        if len(indices) < count:
            return _evenly(indices[0], indices[-1], count)
        return _evenly(0, num_frames - 1, count) if len(indices) > count else indices


def _one_each(num_frames: int, fps: float, step_s: float, end_s: int) -> Iterator[int]:
    """Yield the first frame of every `step_s` seconds before `end_s`."""
    next_s, duration_s = 0.0, 1 / fps
    for index in range(num_frames):
        if index * duration_s >= next_s:
            next_s += step_s
            yield index
            if next_s >= end_s:
                return


def _evenly(first: int, last: int, count: int) -> list[int]:
    return [int(index) for index in np.linspace(first, last, count)]


def _size(num_frames: int, shape: tuple[int, int], settings: MediaSettings, place: str) -> tuple[int, int]:
    unit, pair = settings.patch_size * settings.merge_size, settings.temporal_patch_size
    limits = (settings.min_pixels, settings.max_pixels)
    return smart_video_size(num_frames, shape, unit, pair, limits, place)


def _class_names(files: ModelFiles) -> Iterator[str]:
    """Yield the names of processor classes in the model's files."""
    raws = [read_json_object_if_there(files.path / name) for name in (IMAGE_FILE, VIDEO_FILE, COMBINED_FILE)]
    keys = ("processor_class", "image_processor_type", "video_processor_type")
    for raw, key in itertools.product(raws, keys):
        yield str(raw.get(key, ""))
