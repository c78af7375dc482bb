"""Brings the media of a request into the model's shape, several at once, off the caller's thread.

Keeps what came of the latest files, by a hash of their bytes: an image that comes again, in the next turn of a
conversation, is neither decoded nor resized again. Knows nothing of prompts.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_runtime.processors.embedded_media import read_embeddings
from xllm_runtime.processors.image_file import check_pixels, decode_image, upright
from xllm_runtime.processors.media_bytes import MediaBytes
from xllm_runtime.processors.media_parts import MediaSource
from xllm_runtime.processors.media_processor import MediaProcessor, ProcessedMedia
from xllm_runtime.processors.video_file import VideoFile


class MediaLoader:
    """See the module. Thread-safe."""

    def __init__(self, config: MultimodalConfig, processor: MediaProcessor) -> None:
        self._config = config
        self._processor = processor
        self._bytes = MediaBytes(config)
        self._limits = {"image": config.limit_image_per_prompt, "video": config.limit_video_per_prompt}
        self._pool = ThreadPoolExecutor(config.num_media_threads, thread_name_prefix="xllm-media")
        self._kept: OrderedDict[bytes, ProcessedMedia] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, sources: Sequence[MediaSource]) -> list[ProcessedMedia]:
        """Return the media of one prompt, in order.

        Raises:
            InvalidRequest: there are too many, or one cannot be had or used; names it.
        """
        for kind, count in Counter(source.kind for source in sources).items():
            if count > self._limits[kind]:
                raise InvalidRequest(
                    f"The messages bring {count} parts of kind {kind}; {self._limits[kind]} is the limit "
                    f"(limit_{kind}_per_prompt).",
                    "messages",
                )
        count = sum(source.kind == "image" for source in sources) if self._processor.sees_other_images else 1
        futures = [self._pool.submit(self._load, source, count) for source in sources]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads once they have done what they were given."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, source: MediaSource, num_images: int) -> ProcessedMedia:
        if source.is_embedded:
            embedded = read_embeddings(source.content, source.place, self._config.max_media_bytes)
            return self._processor.process_embeddings(source.kind, embedded, source.place)
        content = self._bytes.read(source)
        if not isinstance(content, bytes):
            return self._process_object(content, source, num_images)
        is_alone = b"1" if num_images == 1 else b"+"
        key = hashlib.blake2b(is_alone + source.kind.encode() + content, digest_size=16).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        processed = self._process_file(content, source, num_images)
        with self._lock:
            self._kept[key] = processed
            while len(self._kept) > self._config.max_processor_cache_items:
                self._kept.popitem(last=False)
        return processed

    def _process_file(self, content: bytes, source: MediaSource, num_images: int) -> ProcessedMedia:
        limit, place = self._config.max_image_pixels, source.place
        if source.kind == "image":
            return self._processor.process_image(decode_image(content, limit, place), place, num_images)
        with VideoFile(content, limit, place) as video:
            return self._processor.process_video(video, place)

    def _process_object(self, content: Any, source: MediaSource, num_images: int) -> ProcessedMedia:
        """Take a picture that a script made."""
        import PIL.Image

        if not isinstance(content, PIL.Image.Image):
            raise InvalidRequest(
                f"{source.place} is a {type(content).__name__}, not a picture, bytes or a URL.", "messages"
            )
        check_pixels(content.width, content.height, self._config.max_image_pixels, source.place)
        return self._processor.process_image(upright(content.copy()), source.place, num_images)
