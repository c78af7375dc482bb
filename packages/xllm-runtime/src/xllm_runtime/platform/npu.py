"""An Ascend NPU as a device: whether torch_npu sees one, its memory. torch_npu patches torch when it is imported."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

from xllm_framework.errors import XLLMError
from xllm_runtime.platform.interface import DeviceMemory


def why_unavailable(index: int = 0) -> str | None:
    """Return why NPU `index` cannot be used, or None when it can."""
    if importlib.util.find_spec("torch_npu") is None:
        return "the package torch_npu is not installed"
    try:
        npu = _npu()
    except (ImportError, OSError) as error:
        return f"torch_npu cannot be imported: {error}"
    if not npu.is_available():
        return "torch_npu finds no NPU or no CANN driver"
    if index >= npu.device_count():
        return f"there are {npu.device_count()} NPUs, numbered from 0"
    return None


class NPUPlatform:
    """NPU `index` of this machine."""

    name = "npu"

    def __init__(self, index: int = 0) -> None:
        self._npu = _npu()
        self.device = torch.device("npu", index)

    def default_dtype(self, checkpoint_dtype: torch.dtype) -> torch.dtype:
        """Return the checkpoint's type: Ascend's matrix units take float16 and bfloat16 alike."""
        return checkpoint_dtype

    def memory(self) -> DeviceMemory:
        """Return the NPU's memory; what torch has cached but does not use counts as available."""
        available, total = self._npu.mem_get_info(self.device)
        cached = self._npu.memory_reserved(self.device) - self._npu.memory_allocated(self.device)
        return DeviceMemory(total, available + cached)

    def set_threads(self, threads: int) -> int:
        """Set the threads of what stays on the CPU; 0 takes one, as the NPU computes."""
        torch.set_num_threads(threads or 1)
        return threads or 1

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros on the NPU."""
        try:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        except RuntimeError as error:  # torch_npu raises its out-of-memory error as a plain RuntimeError
            raise XLLMError(f"The NPU has no memory for a tensor of shape {shape} in {dtype}.") from error


def _npu() -> Any:
    """Return torch_npu's counterpart of `torch.cuda`."""
    return importlib.import_module("torch_npu").npu
