"""How Qwen3-VL takes images and videos: images as its predecessors, videos as frames with time stamps between.

    <0.3 seconds><|vision_start|><|video_pad|> ... <|vision_end|><1.3 seconds><|vision_start|> ...

The template's own brackets stay around all of it. A frame here is `temporal_patch_size` pictures, stamped with the middle of
their times. Knows nothing of towers. Source: the model's own processor, as transformers has it.
"""

from __future__ import annotations

import numpy as np

from xllm_framework.config import MultimodalConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.multimodal import MediaItem
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.processors.media_processor import ProcessedMedia, Video
from xllm_runtime.processors.qwen_vl import (
    MAX_FRAMES,
    MIN_FRAMES,
    QwenVLProcessor,
    frame_rate,
    media_item,
    stacked_frames,
    token_id_of,
)
from xllm_runtime.processors.resize import smart_video_size
from xllm_runtime.processors.settings import Defaults, load_image_settings, load_video_settings
from xllm_runtime.processors.video_file import VideoShape

HALF = (0.5, 0.5, 0.5)
IMAGE_DEFAULTS = Defaults(56 * 56, 28 * 28 * 1280, 16, HALF, HALF)
VIDEO_DEFAULTS = Defaults(128 * 32 * 32, 32 * 32 * 768, 16, HALF, HALF)


class Qwen3VLProcessor(QwenVLProcessor):
    """`MediaProcessor` of Qwen3-VL; raises as `QwenVLProcessor` does."""

    splits_frames = True

    def __init__(self, config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer) -> None:
        super().__init__(config, files, args, tokenizer)
        self.image = load_image_settings(files, IMAGE_DEFAULTS)
        self.video = load_video_settings(files, VIDEO_DEFAULTS)
        self._tokenizer = tokenizer
        self._brackets = [token_id_of(args, f"vision_{name}_token_id") for name in ("start", "end")]

    def process_video(self, video: Video, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_video`."""
        settings = self.video
        shape = video.shape(self._choose_frames)
        size = smart_video_size(
            len(shape.indices),
            (shape.height, shape.width),
            settings.patch_size * settings.merge_size,
            settings.temporal_patch_size,
            (settings.min_pixels, settings.max_pixels),
            place,
        )
        item = media_item("video", stacked_frames(video, shape, size, settings), settings, self._stamps(shape))
        return ProcessedMedia(item, self._video_expansion(item))

    def _video_expansion(self, item: MediaItem) -> list[int]:
        """See `QwenVLProcessor._video_expansion`."""
        _, height, width = item.grid
        start, end = self._brackets
        frame = [start, *[self.targets["video"]] * (height * width // self.video.merge_size**2), end]
        expansion: list[int] = []
        for stamp in item.timestamps:
            expansion += self._tokenizer.encode(f"<{stamp:.1f} seconds>", add_special_tokens=False)
            expansion += frame
        return expansion

    def _stamps(self, shape: VideoShape) -> list[float]:
        """Return the time in the middle of each frame's pictures, in seconds."""
        pair = self.video.temporal_patch_size
        indices = shape.indices + shape.indices[-1:] * (-len(shape.indices) % pair)
        times = [index / shape.fps for index in indices]
        return [(times[at] + times[at + pair - 1]) / 2 for at in range(0, len(times), pair)]

    def _choose_frames(self, num_frames: int, fps: float) -> list[int]:
        """Take so many frames a second, evenly from the first to the last."""
        raw = self.video.raw
        least, most = int(raw.get("min_frames") or MIN_FRAMES), int(raw.get("max_frames") or MAX_FRAMES)
        count = int(num_frames / fps * frame_rate(self._config, self.video))
        count = min(max(count, least), most, self._config.max_video_frames, num_frames)
        return [int(index) for index in np.linspace(0, num_frames - 1, count).round()]
