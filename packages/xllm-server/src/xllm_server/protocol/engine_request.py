"""The fields of every request that the engine serves, whoever's API it follows. Knows nothing of what it generates."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import NO_OBJECTIVES, ServiceObjectives
from xllm_runtime.master.prepared_request import RequestOptions

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Integers that travel to the engine and into its arrays."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
MAX_REQUEST_ID_LENGTH = 256
MAX_CACHE_SALT_LENGTH = 1024
_OBJECTIVE_FIELDS = ServiceObjectives.__struct_fields__


class EngineRequest(msgspec.Struct, kw_only=True):
    """Who asks, and how soon it must be served."""

    model: str | None = None
    """Must be the served model's name; left out, that is taken."""
    stream: bool | None = None
    request_id: str | None = None
    """Names the request in answers and logs; need not be unique. The header X-Request-Id goes before it."""
    priority: Int32 | None = None
    cache_salt: str | None = None
    """Only requests with an equal salt share cached prompts."""
    offline: bool | None = None
    """Best effort: may wait behind and be preempted by others."""
    timeout: float | None = None
    """Seconds that the request may wait for its first step; then it is given up with 503. The header X-Request-Timeout
    can only shorten it."""
    ttft_slo_ms: float | None = None
    """Time to first token to aim at, where the server's strategy looks at it; so are the fields below."""
    tpot_slo_ms: float | None = None
    ttlt_slo_ms: float | None = None
    ttft_weight: float | None = None
    tpot_weight: float | None = None
    ttlt_weight: float | None = None

    def check_engine_fields(self) -> None:
        """Check the fields of this type.

        Raises:
            InvalidRequest: `param` names the field.
        """
        if self.request_id is not None:
            check_request_id(self.request_id, "request_id")
        if self.cache_salt is not None and len(self.cache_salt) > MAX_CACHE_SALT_LENGTH:
            raise InvalidRequest(f"cache_salt has at most {MAX_CACHE_SALT_LENGTH} characters.", "cache_salt")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidRequest(f"timeout must be above 0 seconds, not {self.timeout:g}.", "timeout")
        self._objectives()

    def options(self, request_id: str) -> RequestOptions:
        """Return what the master is told beside prompt and sampling; the time that may be waited begins now."""
        return RequestOptions(
            request_id=request_id,
            priority=self.priority or 0,
            deadline_s=None if self.timeout is None else time.monotonic() + self.timeout,
            cache_salt=self.cache_salt or "",
            is_offline=bool(self.offline),
            objectives=self._objectives(),
        )

    def _objectives(self) -> ServiceObjectives:
        given = {name: value for name in _OBJECTIVE_FIELDS if (value := getattr(self, name)) is not None}
        return ServiceObjectives(**given) if given else NO_OBJECTIVES


def check_request_id(request_id: str, param: str) -> None:
    """Check a request id from outside: 1 to 256 printable ASCII characters.

    Raises:
        InvalidRequest: it is longer, empty, or holds something else; `param` is the argument.
    """
    is_printable = request_id.isascii() and request_id.isprintable()
    if not (0 < len(request_id) <= MAX_REQUEST_ID_LENGTH and is_printable):
        raise InvalidRequest(f"{param} must have 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters.", param)
