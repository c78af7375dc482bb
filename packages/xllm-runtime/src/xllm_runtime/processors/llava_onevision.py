"""How LLaVA-OneVision takes images and videos: one image alone as a whole and in tiles of any resolution, several as one tile
each, and every frame of a video as one tile with a quarter of its embeddings.

Knows nothing of towers. Source: the model's own processor, as transformers has it; LLaVA-OneVision (Li et al., 2024) for the
number of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import PIL.Image

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest, ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.multimodal import MediaItem, PromptMedia
from xllm_framework.multimodal.anyres import best_resolution, fitted_size, num_features
from xllm_framework.multimodal.media_item import MediaKind, hash_media
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.processors.embedded_media import EmbeddedMedia, embedded_item
from xllm_runtime.processors.media_processor import ProcessedMedia, Video
from xllm_runtime.processors.resize import Pixels, resize_frame, resize_image
from xllm_runtime.processors.settings import Defaults, load_image_settings, load_video_settings

HALF = (0.5, 0.5, 0.5)
DEFAULT_FPS, MAX_FRAMES = 1.0, 32


class LlavaOnevisionProcessor:
    """`MediaProcessor` of the family.

    Raises:
        ModelLoadError: config.json lacks the image token or the list of resolutions.
    """

    sees_other_images = True

    def __init__(self, config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer) -> None:
        self._config = config
        self._embedding_width = args.hidden_size
        self.image = load_image_settings(files, Defaults(1, 1, mean=HALF, std=HALF))
        self.video = load_video_settings(files, Defaults(1, 1, mean=HALF, std=HALF))
        raw = args.raw
        fields = ConfigFields(raw.get("vision_config") or {}, "vision_config in config.json")
        self._tile = fields.integer("image_size", default=384)
        self._side = self._tile // fields.integer("patch_size", default=14)
        resolutions = raw.get("image_grid_pinpoints")
        if not isinstance(resolutions, list) or not resolutions:
            raise ModelLoadError("config.json has no image_grid_pinpoints, a list of heights and widths.")
        self._resolutions: list[list[int]] = resolutions
        self._max_tiles = int(str(raw.get("vision_aspect_ratio", "anyres_max_9")).removeprefix("anyres_max_"))
        self.targets = {"image": _token_id(args, "image")}
        if "video_token_index" in raw or "video_token_id" in raw:
            self.targets["video"] = _token_id(args, "video")
        self.marks = {token_id: kind for kind, token_id in self.targets.items()}

    def process_image(self, image: PIL.Image.Image, place: str, num_images: int = 1) -> ProcessedMedia:
        """See `MediaProcessor.process_image`."""
        size = (image.height, image.width)
        if num_images > 1:
            tiles, count = [resize_image(self._squared(image), self._tile, self._tile)], self._side**2 + 1
        else:
            resolution = best_resolution(size, self._resolutions)
            tiles = [resize_image(image, self._tile, self._tile), *self._cut(image, resolution)]
            grid = (resolution[0] // self._tile, resolution[1] // self._tile)
            count = num_features(size, grid, self._side, self._max_tiles)
        pixels = np.stack(tiles)
        grid_of_tiles = (len(tiles), *size)
        content = pixels.tobytes()
        item = MediaItem("image", hash_media("image", grid_of_tiles, content), grid_of_tiles, pixels.shape, content)
        return ProcessedMedia(item, [self.targets["image"]] * count)

    def process_video(self, video: Video, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_video`; refuses videos where config.json names no token for them."""
        if "video" not in self.targets:
            raise InvalidRequest(f"{place} is a video; this model takes images alone.", "messages")
        shape = video.shape(self._choose_frames)
        pixels = np.stack([resize_frame(frame, self._tile, self._tile) for frame in video.frames(shape)])
        count = len(pixels) * math.ceil(self._side / 2) ** 2 + 1
        grid, content = (len(pixels), 1, 1), pixels.tobytes()
        item = MediaItem("video", hash_media("video", grid, content), grid, pixels.shape, content)
        return ProcessedMedia(item, [self.targets["video"]] * count)

    def process_embeddings(self, kind: MediaKind, embedded: EmbeddedMedia, place: str) -> ProcessedMedia:
        """See `MediaProcessor.process_embeddings`; row ends are among the rows."""
        num_rows, width = embedded.values.shape
        if kind not in self.targets or width != self._embedding_width:
            raise InvalidRequest(
                f"{place}: data has {width} columns, not this model's {self._embedding_width}, or is a {kind}, which it "
                "does not take.",
                "messages",
            )
        item = embedded_item(kind, embedded, (1, num_rows, 1))
        return ProcessedMedia(item, [self.targets[kind]] * num_rows)

    def place(self, num_tokens: int, items: list[MediaItem], time_steps: Sequence[float]) -> PromptMedia:
        """See `MediaProcessor.place`; positions are indices."""
        return PromptMedia(items)

    def _choose_frames(self, num_frames: int, fps: float) -> list[int]:
        """Take so many frames a second, evenly from the first on."""
        rate = self._config.video_fps or float(self.video.raw.get("fps") or DEFAULT_FPS)
        count = min(int(num_frames / fps * rate), MAX_FRAMES, self._config.max_video_frames, num_frames)
        return [int(index) for index in np.arange(max(count, 1)) * (num_frames / max(count, 1))]

    def _squared(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """Pad a picture to a square, with the colour that normalising makes black of."""
        side = max(image.size)
        colour = tuple(int(mean * 255) for mean in self.image.normalisation.mean)
        square = PIL.Image.new("RGB", (side, side), colour)
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square

    def _cut(self, image: PIL.Image.Image, resolution: tuple[int, int]) -> list[Pixels]:
        """Fit a picture into `resolution`, pad it with zeros, and return its tiles, row after row."""
        height, width = fitted_size((image.height, image.width), resolution)
        padded = np.zeros((*resolution, 3), np.uint8)
        top, left = (resolution[0] - height) // 2, (resolution[1] - width) // 2
        padded[top : top + height, left : left + width] = resize_image(image, height, width)
        tile = self._tile
        return [
            padded[row : row + tile, column : column + tile]
            for row in range(0, resolution[0], tile)
            for column in range(0, resolution[1], tile)
        ]


def _token_id(args: ModelArgs, kind: str) -> int:
    """Return the token id of a kind of media; raises `ModelLoadError` where config.json gives none."""
    token_id = args.raw.get(f"{kind}_token_index", args.raw.get(f"{kind}_token_id"))
    if not isinstance(token_id, int) or not 0 <= token_id < args.vocab_size:
        raise ModelLoadError(f"{kind}_token_index in config.json is {token_id!r}, not a token id of the model.")
    return token_id
