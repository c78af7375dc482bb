"""The header `X-Request-Timeout`: seconds that a request may wait for its first step. Knows nothing of clocks."""

from __future__ import annotations

from collections.abc import Mapping

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.engine_request import EngineRequest

HEADER = "X-Request-Timeout"


def shorten_timeout(body: EngineRequest, headers: Mapping[str, str]) -> None:
    """Let the header, where there is one, shorten the body's own `timeout`.

    Raises:
        InvalidRequest: it is no positive number of seconds.
    """
    given = headers.get(HEADER)
    if given is None:
        return
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise InvalidRequest(f"{HEADER} must be a positive number of seconds, not {given[:50]!r}.", HEADER)
    body.timeout = timeout_s if body.timeout is None else min(body.timeout, timeout_s)
