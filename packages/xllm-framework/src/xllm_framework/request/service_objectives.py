"""Latencies that a request should meet, and what meeting them is worth. Knows nothing of who aims at them, or how."""

from __future__ import annotations

import math

import msgspec

from xllm_framework.errors import InvalidRequest


class ServiceObjectives(msgspec.Struct, array_like=True, frozen=True):
    """Service-level objectives (SLOs) of one request, in milliseconds; 0 means none. Missing one never ends a request.

    Raises:
        InvalidRequest: a value is negative or not finite; `param` names the field.
    """

    ttft_slo_ms: float = 0.0
    """Time to first token, from arrival."""
    tpot_slo_ms: float = 0.0
    """Mean time between two tokens."""
    ttlt_slo_ms: float = 0.0
    """Time to last token, from arrival."""
    ttft_weight: float = 1.0
    """What its first token is worth, against other requests; only the density strategies look at it."""
    tpot_weight: float = 1.0
    """What each later token is worth."""
    ttlt_weight: float = 1.0
    """Multiplies both of the above for a request with a `ttlt_slo_ms`."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{name} must be 0 or more, not {value}.", name)


NO_OBJECTIVES = ServiceObjectives()
"""Any latency will do."""
