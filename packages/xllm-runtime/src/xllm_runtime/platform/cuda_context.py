"""Makes a GPU's context by the driver's own library, on a thread, while torch is imported: both take long, and neither needs the other.

Knows nothing of torch, which finds the context there. Source: the CUDA driver API, on primary contexts.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from pathlib import Path

_DEVICE = re.compile(r"cuda(?::(\d+))?")
_SUCCESS = 0


def begin_context(device: str, device_folder: Path = Path("/dev")) -> threading.Thread | None:
    """Begin to make the context of `device`, an option's value, if that is likely a CUDA GPU. What fails is torch's to report."""
    index = likely_gpu(device, device_folder)
    if index is None:
        return None
    thread = threading.Thread(target=retain_context, args=(index,), name="xllm-cuda-context", daemon=True)
    thread.start()
    return thread


def likely_gpu(device: str, device_folder: Path) -> int | None:
    """Return the number of the GPU that `device` most likely means; None where it is none of CUDA's."""
    if device == "auto":
        return 0 if any(device_folder.glob("nvidia[0-9]*")) else None
    match = _DEVICE.fullmatch(device)
    return None if match is None else int(match[1] or 0)


def retain_context(index: int, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> bool:
    """Make the primary context of GPU `index`, for as long as the process lives; False where there is none."""
    try:
        driver = load("libcuda.so.1")
    except OSError:
        return False
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    return bool(
        driver.cuInit(0) == _SUCCESS
        and driver.cuDeviceGet(ctypes.byref(handle), index) == _SUCCESS
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle) == _SUCCESS
    )
