"""Chooses the platform by the option `device`, and tells why others do not serve."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from xllm_framework.errors import InvalidConfig
from xllm_runtime.platform import cuda, npu
from xllm_runtime.platform.cpu import CPUPlatform
from xllm_runtime.platform.interface import Platform

NULL_DEVICE = "null"
"""A device without compute, for benchmarks of the host side: the engine gives it to a `NullWorker`, never to a platform."""
_DEVICE = re.compile(r"cpu|(cuda|npu)(?::(\d+))?")
_ACCELERATORS: dict[str, tuple[Callable[[int], str | None], Callable[[int], Platform]]] = {
    "cuda": (cuda.why_unavailable, cuda.CUDAPlatform),
    "npu": (npu.why_unavailable, npu.NPUPlatform),
}
"""In the order in which `auto` asks: (why not, construct)."""

logger = logging.getLogger(__name__)


def select_platform(device: str) -> Platform:
    """Return the platform of `device`: auto, cpu, cuda, cuda:1, npu, npu:1. auto takes the first that is there.

    Raises:
        InvalidConfig: no such kind of device, or it cannot be used here; says why.
    """
    if device == "auto":
        return _first_available()
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise InvalidConfig(f"device must be auto, cpu, cuda, npu, or cuda:1 and the like, not {device!r}.")
    if match[1] is None:
        return CPUPlatform()
    why_unavailable, construct = _ACCELERATORS[match[1]]
    index = int(match[2] or 0)
    reason = why_unavailable(index)
    if reason is not None:
        raise InvalidConfig(f"device {device} cannot be used: {reason}.")
    return construct(index)


def _first_available() -> Platform:
    for kind, (why_unavailable, construct) in _ACCELERATORS.items():
        reason = why_unavailable(0)
        if reason is None:
            return construct(0)
        logger.debug("Device %s is not taken: %s.", kind, reason)
    return CPUPlatform()
