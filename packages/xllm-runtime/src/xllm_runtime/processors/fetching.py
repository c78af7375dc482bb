"""Fetches media by http and https, so that a request cannot make the server reach what its sender cannot.

Every hop is checked anew: scheme, port, and the address that is connected to. Answers are bounded in bytes and time, and no
proxy, cookie or credential is used. Knows nothing of what is fetched.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

from xllm_framework.config import MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_runtime.processors.addresses import checked_addresses

MAX_REDIRECTS = 5
PUBLIC_PORTS = {"http": 80, "https": 443}
"""The only ports that are connected to, unless private media are allowed."""
_REDIRECTS = (301, 302, 303, 307, 308)


class TimedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end at a deadline, however slowly the other end drips."""

    def __init__(self, stream: httpcore.NetworkStream, deadline_s: float) -> None:
        self._stream, self._deadline_s = stream, deadline_s

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """See `httpcore.NetworkStream.read`."""
        return self._stream.read(max_bytes, seconds_left(self._deadline_s))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """See `httpcore.NetworkStream.write`."""
        self._stream.write(buffer, seconds_left(self._deadline_s))

    def close(self) -> None:
        """See `httpcore.NetworkStream.close`."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """See `httpcore.NetworkStream.start_tls`."""
        left = seconds_left(self._deadline_s)
        return TimedStream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline_s)

    def get_extra_info(self, info: str) -> Any:
        """See `httpcore.NetworkStream.get_extra_info`."""
        return self._stream.get_extra_info(info)


def seconds_left(deadline_s: float) -> float:
    """Return the seconds until `deadline_s`, a reading of the monotonic clock. Raises `TimeoutError` when it has passed."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class CheckedConnections(httpcore.NetworkBackend):
    """Connects to addresses that were checked; TLS still names, and verifies, the host of the URL."""

    def __init__(self, place: str, deadline_s: float, *, allows_private: bool) -> None:
        self._sockets = httpcore.SyncBackend()
        self._place, self._deadline_s, self._allows_private = place, deadline_s, allows_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of `host` that answers. Raises what `checked_addresses` raises."""
        addresses = [host] if self._allows_private else checked_addresses(host, port, self._place)
        for number, address in enumerate(addresses, 1):
            try:
                left = seconds_left(self._deadline_s)
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
                return TimedStream(stream, self._deadline_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpcore.ConnectError("no address")


def fetch(url: str, config: MultimodalConfig, place: str) -> bytes:
    """Return what `url` holds.

    Raises:
        InvalidRequest: it may not be fetched, does not answer in time, answers with an error, or is too large; names `place`.
    """
    deadline_s = time.monotonic() + config.media_timeout
    backend = CheckedConnections(place, deadline_s, allows_private=config.allow_private_media)
    try:
        with httpcore.ConnectionPool(network_backend=backend, max_connections=1) as pool:
            for _ in range(MAX_REDIRECTS + 1):
                _check_url(url, config, place)
                content, location = _get(pool, url, config, place)
                if location is None:
                    return content
                url = urljoin(url, location)
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise InvalidRequest(f"{place} did not come within {config.media_timeout:g} s.", "messages") from error
    except InvalidRequest:
        raise
    except Exception as error:  # whatever a hostile server or a broken URL leads to
        raise InvalidRequest(f"{place} cannot be fetched: {type(error).__name__}.", "messages") from error
    raise InvalidRequest(f"{place} is redirected more than {MAX_REDIRECTS} times.", "messages")


def _check_url(url: str, config: MultimodalConfig, place: str) -> None:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidRequest(f"{place} is no URL: {error}.", "messages") from error
    if parts.scheme not in PUBLIC_PORTS or not host:
        raise InvalidRequest(f"{place} leads to a URL that is not http or https.", "messages")
    if port not in (None, PUBLIC_PORTS[parts.scheme]) and not config.allow_private_media:
        raise InvalidRequest(f"{place} leads to port {port}; only the ports of http and https are reached.", "messages")


def _get(pool: httpcore.ConnectionPool, url: str, config: MultimodalConfig, place: str) -> tuple[bytes, str | None]:
    """Return (content, None), or (nothing, where it is redirected to)."""
    headers = [("User-Agent", "xllm"), ("Accept", "image/*, video/*, */*;q=0.1"), ("Accept-Encoding", "identity")]
    with pool.stream("GET", url, headers=headers) as response:
        answer = {name.lower(): value for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in answer:
            return b"", answer[b"location"].decode("latin-1")
        if response.status != 200:
            raise InvalidRequest(f"{place} cannot be fetched: its server answers {response.status}.", "messages")
        content = bytearray()
        for part in response.iter_stream():
            content += part
            if len(content) > config.max_media_bytes:
                raise InvalidRequest(
                    f"{place} is larger than {config.max_media_bytes} bytes (max_media_bytes).", "messages"
                )
        return bytes(content), None
