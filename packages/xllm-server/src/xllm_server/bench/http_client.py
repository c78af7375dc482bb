"""A small HTTP/1.1 client on asyncio streams: one request a connection, events as they arrive.

Made for measuring: a general client spends more time on a chunk than a fast server does. Knows nothing of OpenAI.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

MAX_LINE_BYTES = 2**20


class HttpFailure(Exception):
    """The server answered with an error, or not with HTTP; the message says what came."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the headers that every request to it carries."""

    url: SplitResult
    headers: dict[str, str]

    @classmethod
    def of(cls, base_url: str, api_key: str = "") -> Target:
        """Return the target of a base URL, with or without `/v1`."""
        url = urlsplit(base_url.rstrip("/").removesuffix("/v1"))
        if url.scheme not in ("http", "https") or not url.hostname:
            raise HttpFailure(f"{base_url!r} is no http or https address.")
        return cls(url, {"Authorization": f"Bearer {api_key}"} if api_key else {})


async def request(target: Target, path: str, body: bytes | None = None) -> AsyncIterator[bytes]:
    """Send a request (POST with a body, else GET) and yield the answer's body in the parts in which it arrives.

    Raises:
        HttpFailure: a status other than 200, or an answer that is cut short.
        OSError: the server cannot be reached.
    """
    url = target.url
    is_tls = url.scheme == "https"
    reader, writer = await asyncio.open_connection(
        url.hostname,
        url.port or (443 if is_tls else 80),
        ssl=ssl.create_default_context() if is_tls else None,
        limit=MAX_LINE_BYTES,
    )
    try:
        writer.write(_head(target, path, body) + (body or b""))
        status, headers = await _read_head(reader)
        parts = _body_parts(reader, headers)
        if status != 200:
            content = b"".join([part async for part in parts])
            raise HttpFailure(f"HTTP {status}: {content[:300].decode('utf-8', 'replace')}")
        async for part in parts:
            yield part
    except asyncio.IncompleteReadError as error:
        raise HttpFailure("The connection ended in the middle of an answer.") from error
    finally:
        writer.close()


async def events(target: Target, path: str, body: bytes) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event of the answer, the end mark `[DONE]` left out; raises as `request`."""
    rest = b""
    async for part in request(target, path, body):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                if content != b"[DONE]":
                    yield content


def _head(target: Target, path: str, body: bytes | None) -> bytes:
    url = target.url
    lines = [
        f"{'GET' if body is None else 'POST'} {url.path}{path} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        "Connection: close",
        "Accept: */*",
        *(f"{name}: {value}" for name, value in target.headers.items()),
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = head[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdecimal():
        raise HttpFailure(f"The server does not speak HTTP: {head[0][:100]!r}.")
    pairs = (line.partition(":") for line in head[1:] if line)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _body_parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(2**16):
            yield part
