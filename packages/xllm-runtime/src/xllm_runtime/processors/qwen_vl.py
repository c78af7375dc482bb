"""How Qwen2-VL and Qwen2.5-VL take images and videos: any size, in whole merge units. Knows nothing of towers.

An image of H x W pixels, resized to multiples of patch_size * merge_size, becomes one token a merge unit. Frames of a video
are padded to pairs by repeating the last one. Sources: the models' own processors, as transformers has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import PIL.Image

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest, ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.multimodal import MediaItem, PositionRule, PromptMedia, multimodal_positions
from xllm_framework.multimodal.media_item import MediaKind, hash_media
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.processors.embedded_media import EmbeddedMedia, embedded_item, frame_times, merged_grid
from xllm_runtime.processors.media_processor import ProcessedMedia, Video
from xllm_runtime.processors.resize import Pixels, resize_frame, resize_image, smart_size
from xllm_runtime.processors.settings import Defaults, MediaSettings, load_image_settings, load_video_settings
from xllm_runtime.processors.video_file import VideoShape

MIN_FRAMES, MAX_FRAMES, DEFAULT_FPS = 4, 768, 2.0
IMAGE_DEFAULTS = Defaults(56 * 56, 28 * 28 * 1280)
VIDEO_DEFAULTS = Defaults(128 * 28 * 28, 28 * 28 * 768)
STEP_TOLERANCE_S = 1e-3
"""Between the frames of a video that lie equally far apart."""


class QwenVLProcessor:
    """`MediaProcessor` of the family.

    Raises:
        ModelLoadError: config.json does not name the model's image and video tokens, or settings are broken.
    """

    sees_other_images = False
    splits_frames: ClassVar[bool] = False
    """See `PositionRule.splits_frames`."""

    def __init__(self, config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer) -> None:
        self.image = load_image_settings(files, IMAGE_DEFAULTS)
        self.video = load_video_settings(files, VIDEO_DEFAULTS)
        self.targets = {"image": token_id_of(args, "image_token_id"), "video": token_id_of(args, "video_token_id")}
        self.marks = {token_id: kind for kind, token_id in self.targets.items()}
        vision = args.raw.get("vision_config") or {}
        self._tokens_per_second = float(vision.get("tokens_per_second") or 0.0)
        self._embedding_width = args.hidden_size * (1 + len(vision.get("deepstack_visual_indexes") or ()))
        self._config = config

    def process_image(self, image: PIL.Image.Image, place: str, num_images: int = 1) -> ProcessedMedia:
        """See `MediaProcessor.process_image`."""
        settings = self.image
        height, width = self._size(image.height, image.width, settings, place)
        item = media_item("image", resize_image(image, height, width)[None], settings)
        return ProcessedMedia(item, [self.targets["image"]] * num_tokens(item, settings))

    def process_video(self, video: Video, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_video`."""
        shape = video.shape(self._choose_frames)
        height, width = self._size(shape.height, shape.width, self.video, place)
        fps = len(shape.indices) / shape.num_frames * shape.fps
        seconds = self.video.temporal_patch_size / fps
        step = self._time_step(seconds)
        frames = stacked_frames(video, shape, (height, width), self.video)
        times = [seconds * index for index in range(len(frames) // self.video.temporal_patch_size)]
        item = media_item("video", frames, self.video, times, f"{step}")
        return ProcessedMedia(item, self._video_expansion(item), step)

    def process_embeddings(self, kind: MediaKind, embedded: EmbeddedMedia, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_embeddings`; wants the grid, and the timestamps of a video on which anything depends."""
        num_rows, width = embedded.values.shape
        if width != self._embedding_width:
            raise InvalidRequest(
                f"{place}: data has {width} columns; this model's embeddings have {self._embedding_width}.", "messages"
            )
        if kind == "image":
            grid = merged_grid(kind, embedded, self.image.merge_size, place)
            return ProcessedMedia(embedded_item(kind, embedded, grid), [self.targets[kind]] * num_rows)
        grid = merged_grid(kind, embedded, self.video.merge_size, place)
        step = 1.0
        if self.splits_frames or self._tokens_per_second:
            step = self._step_between(frame_times(embedded, grid[0], place), place)
        item = embedded_item(kind, embedded, grid, f"{step}")
        return ProcessedMedia(item, self._video_expansion(item), step)

    def place(self, num_tokens: int, items: list[MediaItem], time_steps: Sequence[float]) -> PromptMedia:
        """See `MediaProcessor.place`."""
        rule = PositionRule(self.image.merge_size, self.splits_frames)
        positions, delta = multimodal_positions(num_tokens, items, rule, time_steps)
        return PromptMedia(items, positions.tobytes(), delta)

    def _choose_frames(self, num_frames: int, fps: float) -> list[int]:
        """Take so many frames a second, a multiple of those that become one patch, evenly."""
        pair = self.video.temporal_patch_size
        most = min(self._config.max_video_frames, int(self.video.raw.get("max_frames") or MAX_FRAMES), num_frames)
        count = num_frames / fps * frame_rate(self._config, self.video)
        count = min(max(count, MIN_FRAMES), most // pair * pair, num_frames)
        count = max(math.floor(count / pair) * pair, 1)
        return [int(index) for index in np.arange(0, num_frames, num_frames / count, dtype=np.float64)[:count]]

    def _video_expansion(self, item: MediaItem) -> list[int]:
        """Return the token ids that take the place of a video's place-holder."""
        return [self.targets["video"]] * num_tokens(item, self.video)

    def _time_step(self, seconds: float) -> float:
        """Return how far frames `seconds` apart lie on the rotary time axis."""
        return self._tokens_per_second * seconds if self._tokens_per_second else 1.0

    def _step_between(self, times: Sequence[float], place: str) -> float:
        """Return the time step of frames at `times`, which must lie equally far apart where the step is not one."""
        if not self._tokens_per_second or len(times) < 2:
            return 1.0
        seconds = times[1] - times[0]
        if any(abs(later - time - seconds) > STEP_TOLERANCE_S for time, later in pairwise(times)):
            raise InvalidRequest(f"{place}: timestamps must lie equally far apart for this model.", "messages")
        return self._time_step(seconds)

    @staticmethod
    def _size(height: int, width: int, settings: MediaSettings, place: str) -> tuple[int, int]:
        unit = settings.patch_size * settings.merge_size
        return smart_size(height, width, unit, settings.min_pixels, settings.max_pixels, place)


def frame_rate(config: MultimodalConfig, settings: MediaSettings) -> float:
    """Return how many frames a second are taken: as the operator says, else as the model does."""
    return config.video_fps or float(settings.raw.get("fps") or DEFAULT_FPS)


def stacked_frames(video: Video, shape: VideoShape, size: tuple[int, int], settings: MediaSettings) -> Pixels:
    """Return uint8 [frames, *size, 3], resized one by one; the last one repeats until they fill whole patches."""
    frames = [resize_frame(frame, *size) for frame in video.frames(shape)]
    frames += frames[-1:] * (-len(frames) % settings.temporal_patch_size)
    return np.stack(frames)


def media_item(
    kind: MediaKind, frames: Pixels, settings: MediaSettings, timestamps: Sequence[float] = (), details: str = ""
) -> MediaItem:
    """Return the item of `frames` uint8 [frames, height, width, 3], resized already; `details` as for `hash_media`."""
    num_frames, height, width, _ = frames.shape
    grid = (
        max(num_frames // settings.temporal_patch_size, 1),
        height // settings.patch_size,
        width // settings.patch_size,
    )
    content = np.ascontiguousarray(frames).tobytes()
    content_hash = hash_media(kind, grid, content, details)
    return MediaItem(kind, content_hash, grid, frames.shape, content, timestamps=tuple(timestamps))


def num_tokens(item: MediaItem, settings: MediaSettings) -> int:
    """Return how many place-holders an item of this family has."""
    frames, height, width = item.grid
    return frames * height * width // settings.merge_size**2


def token_id_of(args: ModelArgs, name: str) -> int:
    """Return the token id that config.json gives as `name`; raises `ModelLoadError` if it gives none."""
    token_id = args.raw.get(name)
    if not isinstance(token_id, int) or not 0 <= token_id < args.vocab_size:
        raise ModelLoadError(f"{name} in config.json is {token_id!r}, not a token id of the model.")
    return token_id
