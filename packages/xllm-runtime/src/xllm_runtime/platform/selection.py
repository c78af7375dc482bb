"""Chooses the platform by the option `device`, and tells why others do not serve. Imports no device's library before."""

from __future__ import annotations

import logging
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from xllm_framework.errors import InvalidConfig
from xllm_runtime.platform.interface import Platform
from xllm_runtime.torch_extra import INSTALL_TORCH, has_torch

NULL_DEVICE = "null"
"""A device without compute, for benchmarks of the host side: the engine gives it to a `NullWorker`, never to a platform."""
_DEVICE = re.compile(r"cpu|(cuda|npu)(?::(\d+))?")
_CPU = "xllm_runtime.platform.cpu:CPUPlatform"
_ACCELERATORS = {
    "cuda": "xllm_runtime.platform.cuda:CUDAPlatform",
    "npu": "xllm_runtime.platform.npu:NPUPlatform",
}
"""In the order in which `auto` asks: "module:Class", whose module has a function `why_unavailable(index)`."""
_DEVICE_FILES = ("nvidia[0-9]*", "nvhost-gpu", "dxg", "davinci[0-9]*")
"""In /dev, of NVIDIA's driver, of its integrated GPUs, of Windows' subsystem for Linux, and of Ascend's driver."""

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
        return _construct(_CPU)
    index = int(match[2] or 0)
    reason = _why_unavailable(match[1], index)
    if reason is not None:
        raise InvalidConfig(f"device {device} cannot be used: {reason}.")
    return _construct(_ACCELERATORS[match[1]], index)


def selects_cpu(device: str, device_folder: Path = Path("/dev")) -> bool:
    """Whether `select_platform(device)` would return the CPU; imports no torch where a look at the system tells."""
    if device != "auto":
        return device == "cpu"
    if not _shows_accelerator(device_folder):
        return True
    if not has_torch():
        logger.warning("An accelerator seems to be there, but PyTorch is not: computing on the CPU. %s", INSTALL_TORCH)
        return True
    return select_platform(device).name == "cpu"


def _shows_accelerator(device_folder: Path) -> bool:
    """Whether a driver's device file is there. Where systems have no such files, only torch can tell."""
    if sys.platform != "linux":
        return True
    return any(next(device_folder.glob(pattern), None) is not None for pattern in _DEVICE_FILES)


def _first_available() -> Platform:
    for kind, path in _ACCELERATORS.items():
        reason = _why_unavailable(kind, 0)
        if reason is None:
            return _construct(path, 0)
        logger.debug("Device %s is not taken: %s.", kind, reason)
    return _construct(_CPU)


def _why_unavailable(kind: str, index: int) -> str | None:
    """Return why device `index` of a kind cannot be used, or None when it can."""
    if not has_torch():
        return f"it needs PyTorch, which is not installed. {INSTALL_TORCH}"
    reason: str | None = import_module(_ACCELERATORS[kind].partition(":")[0]).why_unavailable(index)
    return reason


def _construct(path: str, *index: int) -> Platform:
    module, _, name = path.partition(":")
    platform_class: Any = getattr(import_module(module), name)
    platform: Platform = platform_class(*index)
    return platform
