"""What a model family must say about its media, and which family a model belongs to. Imports only what it chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from xllm_framework.config import ModelConfig, MultimodalConfig
from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.multimodal import MediaItem, PromptMedia
from xllm_framework.multimodal.media_item import MediaKind
from xllm_framework.tokenizer import Tokenizer

if TYPE_CHECKING:
    import PIL.Image

    from xllm_runtime.processors.embedded_media import EmbeddedMedia
    from xllm_runtime.processors.video_file import FrameIndices, VideoShape

INSTALL = "pip install xllm-runtime[vlm] brings what decodes images and videos"
PROCESSORS = {
    "Qwen2VLForConditionalGeneration": "xllm_runtime.processors.qwen_vl:QwenVLProcessor",
    "Qwen2_5_VLForConditionalGeneration": "xllm_runtime.processors.qwen_vl:QwenVLProcessor",
    "Qwen3VLForConditionalGeneration": "xllm_runtime.processors.qwen3_vl:Qwen3VLProcessor",
    "Qwen3VLMoeForConditionalGeneration": "xllm_runtime.processors.qwen3_vl:Qwen3VLProcessor",
    **dict.fromkeys(
        ("Glm4vForConditionalGeneration", "Glm46VForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
        "xllm_runtime.processors.glm4v:Glm4vProcessor",
    ),
    "LlavaOnevisionForConditionalGeneration": "xllm_runtime.processors.llava_onevision:LlavaOnevisionProcessor",
}
"""Architecture -> "module:Class", made by `Class(config, files, args, tokenizer)`."""


@dataclass(frozen=True, slots=True)
class ProcessedMedia:
    """A medium in the model's shape, before it has a place in a prompt."""

    item: MediaItem
    expansion: list[int]
    """The token ids that take its place-holder's place."""
    time_step: float = 1.0
    """How far its frames lie apart on the rotary time axis."""


class Video(Protocol):
    """A file, or what else has frames."""

    def shape(self, choose: FrameIndices) -> VideoShape:
        """Return what the video is like, and which frames `choose` takes."""

    def frames(self, shape: VideoShape) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield those frames as uint8 [height, width, 3]; raises `InvalidRequest` for a broken file."""


class MediaProcessor(Protocol):
    """The rules of one model family. Thread-safe."""

    marks: dict[int, str]
    """Token id that a chat template writes for a medium -> the medium's kind."""
    targets: dict[str, int]
    """Kind -> token id, within an expansion, of the tokens that get embeddings."""

    sees_other_images: bool
    """Whether a picture's shape depends on how many others there are in the conversation."""

    def process_image(self, image: PIL.Image.Image, place: str, num_images: int = 1) -> ProcessedMedia:
        """Return an RGB picture, one of `num_images`, in the model's shape.

        Raises `InvalidRequest`, naming `place`, if it has none.
        """

    def process_video(self, video: Video, place: str) -> ProcessedMedia:
        """Return a video in the model's shape; raises as `process_image` does."""

    def process_embeddings(self, kind: MediaKind, embedded: EmbeddedMedia, place: str) -> ProcessedMedia:
        """Return a medium that comes encoded; raises as `process_image` does where it does not fit the model."""

    def place(self, num_tokens: int, items: list[MediaItem], time_steps: Sequence[float]) -> PromptMedia:
        """Return the media of a prompt with their positions; `time_steps` are those of the items."""


def is_left_to_transformers(config: ModelConfig, architecture: str) -> bool:
    """Whether the transformers library processes and computes images for a model: as asked for, or as nobody else does."""
    return config.model_impl == "transformers" or (config.model_impl == "auto" and architecture not in PROCESSORS)


def load_media_processor(
    config: MultimodalConfig, files: ModelFiles, args: ModelArgs, tokenizer: Tokenizer
) -> MediaProcessor:
    """Return the processor of the model's family.

    Raises:
        UnsupportedModel: the family is not known.
        ModelLoadError: the model's settings are broken.
        InvalidConfig: the libraries that decode images are not installed.
    """
    path = PROCESSORS.get(args.architecture)
    if path is None:
        raise UnsupportedModel(
            f"The vlm backend does not know how {args.architecture} takes images; it knows {', '.join(PROCESSORS)}."
        )
    module, _, name = path.partition(":")
    try:
        processor_class = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("xllm"):
            raise
        raise InvalidConfig(f"Serving images needs {error.name}: {INSTALL}.") from error
    processor: MediaProcessor = processor_class(config, files, args, tokenizer)
    return processor
