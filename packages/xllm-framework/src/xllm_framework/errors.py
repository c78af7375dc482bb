"""Every error that xLLM raises on purpose. Knows nothing of HTTP: the server maps `kind` to a status code.

A message is one sentence a user can act on, and names the field, file or limit that it is about.
"""

from __future__ import annotations

from typing import ClassVar


class XLLMError(Exception):
    """Base of all deliberate errors. `kind` travels between processes in place of the class."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(XLLMError):
    """The request cannot be served as it was sent; sending it again changes nothing. `param` names the field."""

    kind = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLong(InvalidRequest):
    """Prompt, or prompt and `max_tokens` together, exceed the model's context; the message names both lengths."""

    kind = "request_too_long"


class InvalidConfig(XLLMError):
    """An option has a wrong name, type or value; the message names the option and where it was read."""

    kind = "invalid_config"


class ModelLoadError(XLLMError):
    """A model cannot be loaded: a missing folder, a missing shard, a broken file. The message names it."""

    kind = "model_load"


class UnsupportedModel(ModelLoadError):
    """The model's architecture, or a setting of it, has no implementation here."""

    kind = "unsupported_model"


class OutOfBlocks(XLLMError):
    """The block pool cannot give what was asked; whoever asked keeps exactly what it had."""

    kind = "out_of_blocks"


class OutOfMemory(XLLMError):
    """The device has no memory for what was asked; trying again, or asking for less, can work."""

    kind = "out_of_memory"


class QueueFull(XLLMError):
    """Too many requests wait already; trying again later can work. `retry_after_s` says when."""

    kind = "queue_full"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(XLLMError):
    """The engine takes no new requests because it is about to stop."""

    kind = "shutting_down"


class EngineDead(XLLMError):
    """The engine process or loop has ended; requests in flight are lost."""

    kind = "engine_dead"


class RequestFailed(XLLMError):
    """One request failed inside the engine; its neighbours are not affected."""

    kind = "request_failed"


class DeadlineExceeded(XLLMError):
    """The request's deadline passed before any of it was computed; trying again later can work."""

    kind = "deadline_exceeded"


class IntegrityError(XLLMError):
    """An invariant of the cache or of the scheduler does not hold: a fault of ours, which the message describes."""

    kind = "integrity"
