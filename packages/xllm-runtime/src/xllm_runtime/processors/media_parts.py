"""Takes images and videos out of a conversation, whichever API's shape their parts have. Knows nothing of decoding.

    {"type": "image_url", "image_url": {"url": ...}}      OpenAI's chat; also a plain string, and video_url alike
    {"type": "input_image", "image_url": ...}             OpenAI's responses
    {"type": "image", "source": {...}}                    Anthropic's messages: base64 with media_type and data, or url
    {"type": "image", "image": ...}                       Hugging Face's templates: a URL, bytes or, in a script, a picture
    {"type": "image_embeds", "image_embeds": ...}         what a vision tower made of it, video_embeds alike: see `embedded_media`

In their place, templates see {"type": "image"} or {"type": "video"}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xllm_framework.errors import InvalidRequest
from xllm_framework.multimodal.media_item import MediaKind

_KINDS: dict[str, MediaKind] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "video_url": "video",
    "input_video": "video",
    "video": "video",
    "image_embeds": "image",
    "image_embedding": "image",
    "video_embeds": "video",
    "video_embedding": "video",
}
_EMBEDDED = ("image_embeds", "image_embedding", "video_embeds", "video_embedding")
_AUDIO = ("input_audio", "audio_url", "audio")


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One medium as a request names it."""

    kind: MediaKind
    place: str
    """Where it stands in the request, for errors."""
    content: Any
    """A URL as text, a file's bytes, or an object (a picture, an array) that a script hands over."""
    is_embedded: bool = False
    """`content` is what a tower would make of it, as `read_embeddings` takes it."""


def take_media_parts(messages: Sequence[Any]) -> tuple[list[Any], list[MediaSource]]:
    """Return fresh messages in which media are marks for templates, and the media in order. Nothing else is checked.

    Raises:
        InvalidRequest: a part of audio, or a medium of a wrong shape; names it.
    """
    sources: list[MediaSource] = []
    result = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts = [_taken(part, f"messages[{index}].content[{at}]", sources) for at, part in enumerate(content)]
            message = {**message, "content": parts}
        result.append(message)
    return result, sources


def _taken(part: Any, place: str, sources: list[MediaSource]) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return part
    if kind in _AUDIO:
        raise InvalidRequest(f"{place} is of type {kind}, but this model does not hear.", "messages")
    if kind not in _KINDS:
        return part
    is_embedded = kind in _EMBEDDED
    content = part.get(kind) if is_embedded else _content(part, kind, place)
    if content is None or (isinstance(content, str) and not content):
        raise InvalidRequest(f"{place} of type {kind} names no {_KINDS[kind]}.", "messages")
    sources.append(MediaSource(_KINDS[kind], place, content, is_embedded))
    return {"type": _KINDS[kind]}


def _content(part: dict[str, Any], kind: str, place: str) -> Any:
    """Return what a part says about its medium, whatever its shape."""
    source = part.get("source")
    if isinstance(source, dict):
        return _anthropic(source, place)
    for name in (kind, f"{_KINDS[kind]}_url", _KINDS[kind], "url", "path"):
        value = part.get(name)
        if isinstance(value, dict):
            value = value.get("url")
        if value is not None:
            return value
    return None


def _anthropic(source: dict[str, Any], place: str) -> Any:
    if source.get("type") == "url":
        return source.get("url")
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return f"data:{source.get('media_type', '')};base64,{source['data']}"
    raise InvalidRequest(f"{place}.source must be of type base64 or url.", "messages")
