"""Prompts with images as a model's own processor in transformers makes them, for models whose rules are not written here.

The whole prompt is one medium: its content is every tensor that the processor made beside token ids, and what the model
computes of a token may depend on all of them. Imports transformers and torch, on the front side. Knows nothing of steps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.model import ModelFiles
from xllm_framework.multimodal import MediaItem, PromptMedia
from xllm_framework.multimodal.media_item import hash_media
from xllm_runtime.processors.image_file import check_pixels, decode_image, upright
from xllm_runtime.processors.media_bytes import MediaBytes
from xllm_runtime.processors.media_parts import MediaSource

_NOT_SENT = ("input_ids", "attention_mask")


class NamedArray(msgspec.Struct, array_like=True, frozen=True):
    """One tensor on its way to the worker."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: bytes

    def array(self) -> npt.NDArray[Any]:
        """Return it, read-only."""
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


class PromptInputs(msgspec.Struct, array_like=True, frozen=True):
    """What the processor made of a prompt of P tokens."""

    token_ids: list[int]
    tensors: list[NamedArray]


def read_inputs(item: MediaItem) -> PromptInputs:
    """Return what stands in the content of an item that `TransformersInputs` made."""
    return msgspec.msgpack.decode(item.content, type=PromptInputs)


class TransformersInputs:
    """The processor of one model. Thread-safe: it is called by one thread at a time.

    Raises:
        InvalidConfig: transformers, or a library that the model's processor needs, is missing.
    """

    def __init__(self, config: MultimodalConfig, files: ModelFiles) -> None:
        self._config = config
        self._bytes = MediaBytes(config)
        self._lock = threading.Lock()
        try:
            from transformers import AutoProcessor

            self._processor: Any = AutoProcessor.from_pretrained(files.path, backend="pil", trust_remote_code=False)
        except Exception as error:  # processors fail by whatever their libraries raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InvalidConfig(f"transformers cannot load the processor of {files.name}: {reason}") from error
        if not hasattr(self._processor, "image_processor"):
            kind = type(self._processor).__name__
            raise InvalidConfig(f"transformers cannot load the processor of {files.name}: it found a {kind} alone")

    def process(self, text: str, sources: Sequence[MediaSource], *, has_special_tokens: bool) -> PromptMedia:
        """Return a prompt and its images as one medium; its token ids are `read_inputs(...).token_ids`.

        Args:
            text: with the model's own marks, one an image.
            has_special_tokens: whether `text` begins and ends as the model wants it; else the tokenizer sees to it.

        Raises:
            InvalidRequest: an image cannot be had, or the processor refuses the prompt; names what.
        """
        images = self._images(sources)
        try:
            with self._lock:
                made = self._processor(
                    text=[text], images=[images], return_tensors="pt", add_special_tokens=not has_special_tokens
                )
        except Exception as error:  # whatever a model's processor says about marks, sizes and numbers
            raise InvalidRequest(f"The model's processor refuses the prompt: {error}.", "messages") from error
        token_ids = made["input_ids"][0].tolist()
        tensors = [_named(name, tensor) for name, tensor in made.items() if name not in _NOT_SENT]
        content = msgspec.msgpack.encode(PromptInputs(token_ids, tensors))
        grid = (1, 1, len(token_ids))
        item = MediaItem(
            "image", hash_media("image", grid, content), grid, (len(content),), content, [(0, len(token_ids))]
        )
        return PromptMedia([item])

    def _images(self, sources: Sequence[MediaSource]) -> list[Any]:
        wrong = next((source for source in sources if source.kind != "image" or source.is_embedded), None)
        if wrong is not None:
            raise InvalidRequest(f"{wrong.place} is no image, and this model takes images alone here.", "messages")
        if len(sources) > self._config.limit_image_per_prompt:
            raise InvalidRequest(
                f"The messages bring {len(sources)} parts of kind image; {self._config.limit_image_per_prompt} is the "
                "limit (limit_image_per_prompt).",
                "messages",
            )
        return [self._image(source) for source in sources]

    def _image(self, source: MediaSource) -> Any:
        import PIL.Image

        content, limit = self._bytes.read(source), self._config.max_image_pixels
        if isinstance(content, bytes):
            return decode_image(content, limit, source.place)
        if not isinstance(content, PIL.Image.Image):
            raise InvalidRequest(
                f"{source.place} is a {type(content).__name__}, not a picture, bytes or a URL.", "messages"
            )
        check_pixels(content.width, content.height, limit, source.place)
        return upright(content.copy())


def _named(name: str, tensor: Any) -> NamedArray:
    array = np.ascontiguousarray(tensor.numpy())
    return NamedArray(name, str(array.dtype), array.shape, array.tobytes())
