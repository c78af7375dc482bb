"""Finds the bytes that a request's media stand for: data URLs, allowed files, fetched URLs. Knows nothing of decoding."""

from __future__ import annotations

import binascii
from base64 import b64decode
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_runtime.processors.fetching import fetch
from xllm_runtime.processors.media_parts import MediaSource


class MediaBytes:
    """Reads media under the limits of `config`. Thread-safe."""

    def __init__(self, config: MultimodalConfig) -> None:
        self._config = config
        folder = config.allowed_media_path
        self._folder = Path(folder).expanduser().resolve() if folder else None

    def read(self, source: MediaSource) -> Any:
        """Return the bytes of a medium; an object that is no text is returned as it is.

        Raises:
            InvalidRequest: it cannot be had, or is larger than `max_media_bytes`; names it.
        """
        content = source.content
        if isinstance(content, bytearray | memoryview):
            content = bytes(content)
        if isinstance(content, str):
            content = self._follow(content, source.place)
        if isinstance(content, bytes) and len(content) > self._config.max_media_bytes:
            raise self._too_large(source.place)
        return content

    def _follow(self, url: str, place: str) -> bytes:
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "data":
            return self._decode_data(url, place)
        if scheme in ("http", "https"):
            return fetch(url, self._config, place)
        if scheme == "file" or "://" not in url[:64]:
            return self._read_file(url, place)
        raise InvalidRequest(f"{place} has the scheme {scheme!r}; data, http, https and file are known.", "messages")

    def _decode_data(self, url: str, place: str) -> bytes:
        head, comma, content = url.partition(",")
        if not comma:
            raise InvalidRequest(f"{place} is a data URL without a comma.", "messages")
        if len(content) > 4 * self._config.max_media_bytes:
            raise self._too_large(place)
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(content)
        try:
            return b64decode(unquote(content) if "%" in content else content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"{place} is a data URL whose base64 is broken: {error}.", "messages") from error

    def _read_file(self, url: str, place: str) -> bytes:
        if self._folder is None:
            raise InvalidRequest(
                f"{place} names a file of the server, which reads none (allowed_media_path is empty).", "messages"
            )
        path = unquote(urlsplit(url).path) if url[:5].lower() == "file:" else url
        try:
            resolved = Path(self._folder, path).resolve()
            if not resolved.is_relative_to(self._folder) or not resolved.is_file():
                raise InvalidRequest(f"{place} names no file that the server may read.", "messages")
            with resolved.open("rb") as stream:
                return stream.read(self._config.max_media_bytes + 1)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{place} names no file that the server may read.", "messages") from error

    def _too_large(self, place: str) -> InvalidRequest:
        limit = self._config.max_media_bytes
        return InvalidRequest(
            f"{place} is larger than {limit} bytes, which is the limit (max_media_bytes).", "messages"
        )
