"""How much a client may send and how many requests run at once. Knows nothing of what the requests ask."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from xllm_framework.errors import QueueFull, ShuttingDown
from xllm_server.errors import BodyTooLarge

DRAINED_BODIES = 8
"""A body up to this many times the limit is read (and dropped) before the refusal, so that the client gets to see it:
an answer before the body's end resets the connection of clients that are still sending."""


class Admission:
    """Counts generating requests, refuses those over the limit, and all of them once draining. Event loop only."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._num_in_flight = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_in_flight(self) -> int:
        """Requests that entered and have not left."""
        return self._num_in_flight

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the process is about to stop."""
        return self._is_draining

    def enter(self) -> None:
        """Count a request in; whoever enters must `leave` exactly once.

        Raises:
            ShuttingDown: the process is about to stop.
            QueueFull: `--max-concurrent-requests` are in flight.
        """
        if self._is_draining:
            raise ShuttingDown("The server is shutting down and takes no new requests.")
        if self._num_in_flight >= self._max_requests:
            raise QueueFull(f"{self._num_in_flight} requests are in flight already, as many as this server takes.")
        self._num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._num_in_flight -= 1
        if self._num_in_flight == 0:
            self._idle.set()

    def start_draining(self) -> None:
        """Refuse requests from now on."""
        self._is_draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when `timeout_s` passed first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


async def read_body(http: Request, max_bytes: int) -> bytes:
    """Return the request's body, counted while it arrives: what the client declares is not trusted.

    Raises:
        BodyTooLarge: it holds more than `max_bytes`.
        starlette.requests.ClientDisconnect: the client left before its end.
    """
    refusal = BodyTooLarge(f"The request body is above the limit of {max_bytes} bytes.")
    declared = http.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DRAINED_BODIES * max_bytes:
        raise refusal
    body = bytearray()
    size = 0
    async for part in http.stream():
        size += len(part)
        if size <= max_bytes:
            body += part
        elif size > DRAINED_BODIES * max_bytes:
            break
    if size > max_bytes:
        raise refusal
    return bytes(body)
