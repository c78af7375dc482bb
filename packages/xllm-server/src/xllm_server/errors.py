"""From an `XLLMError` to a status code and OpenAI's error object. Knows nothing of routes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson
from starlette.responses import Response

from xllm_framework.errors import EngineDead, InvalidRequest, QueueFull, RequestFailed, ShuttingDown, XLLMError

SHUTDOWN_RETRY_AFTER_S = 5.0
"""What a client is told to wait when this process is about to stop: time for another one to take over."""


class UnknownModel(InvalidRequest):
    """The request names a model that is not served here."""

    kind = "model_not_found"


class UnknownResponse(InvalidRequest):
    """The request names an answer that is not kept (any more)."""

    kind = "response_not_found"


class Unimplemented(XLLMError):
    """The route is known and does nothing yet; the message says why."""

    kind = "unimplemented"


class Forbidden(XLLMError):
    """The caller may not do this, whatever key it sends."""

    kind = "forbidden"


class UnknownRoute(XLLMError):
    """No such path."""

    kind = "not_found"


class MethodNotAllowed(XLLMError):
    """The path exists, but not for this method."""

    kind = "method_not_allowed"


class BodyTooLarge(XLLMError):
    """The request body exceeds `--max-body-bytes`."""

    kind = "body_too_large"


class UnsupportedMediaType(InvalidRequest):
    """The request body is not declared as JSON."""

    kind = "unsupported_media_type"


class Unauthorized(XLLMError):
    """The API key is missing or wrong."""

    kind = "invalid_api_key"


class ServerFault(XLLMError):
    """An error that nobody meant to raise. The client learns no more than this; the log holds the traceback."""

    kind = "internal"


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a kind of error is in HTTP: `status`, and OpenAI's `type` and `code`."""

    status: int
    type: str
    code: str | None = None


_MEANINGS = {
    "invalid_request": _Meaning(400, "invalid_request_error"),
    "request_too_long": _Meaning(400, "invalid_request_error", "context_length_exceeded"),
    "invalid_api_key": _Meaning(401, "authentication_error", "invalid_api_key"),
    "forbidden": _Meaning(403, "permission_error", "forbidden"),
    "response_not_found": _Meaning(404, "invalid_request_error", "response_not_found"),
    "model_not_found": _Meaning(404, "invalid_request_error", "model_not_found"),
    "not_found": _Meaning(404, "invalid_request_error", "not_found"),
    "method_not_allowed": _Meaning(405, "invalid_request_error", "method_not_allowed"),
    "body_too_large": _Meaning(413, "invalid_request_error", "body_too_large"),
    "unsupported_media_type": _Meaning(415, "invalid_request_error", "unsupported_media_type"),
    "queue_full": _Meaning(429, "rate_limit_error", "queue_full"),
    "deadline_exceeded": _Meaning(503, "server_error", "deadline_exceeded"),
    "out_of_blocks": _Meaning(503, "server_error", "out_of_blocks"),
    "out_of_memory": _Meaning(503, "server_error", "out_of_memory"),
    "shutting_down": _Meaning(503, "server_error", "shutting_down"),
    "engine_dead": _Meaning(503, "server_error", "engine_dead"),
    "unimplemented": _Meaning(501, "server_error", "unimplemented"),
    "request_failed": _Meaning(500, "server_error", "request_failed"),
}
_INTERNAL = _Meaning(500, "server_error", "internal")


def status_of(error: XLLMError) -> int:
    """Return the HTTP status code of `error`."""
    return _MEANINGS.get(error.kind, _INTERNAL).status


def error_body(error: XLLMError) -> bytes:
    """Return `{"error": {"message", "type", "param", "code"}}` as JSON."""
    meaning = _MEANINGS.get(error.kind, _INTERNAL)
    content = {
        "message": error.message,
        "type": meaning.type,
        "param": getattr(error, "param", None),
        "code": meaning.code,
    }
    return orjson.dumps({"error": content})


def error_response(error: XLLMError) -> Response:
    """Return `error` as a response; 429 and 503 say in `Retry-After` (seconds) when to come again."""
    status = status_of(error)
    headers = {}
    if status in (429, 503):
        wait_s = SHUTDOWN_RETRY_AFTER_S if status == 503 else getattr(error, "retry_after_s", 1.0)
        headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer, Basic realm="xLLM"'
    return Response(error_body(error), status, headers, media_type="application/json")


def error_of_kind(kind: str | None, message: str) -> XLLMError:
    """Return the error that an output of kind `kind` stands for; an unknown kind keeps its name and means 500."""
    known: dict[str, type[XLLMError]] = {
        error.kind: error for error in (EngineDead, InvalidRequest, QueueFull, RequestFailed, ShuttingDown)
    }
    if kind in known:
        return known[kind](message)
    error = XLLMError(message)
    error.kind = kind or ServerFault.kind  # type: ignore[misc]  # the kind travels, the class does not
    return error
