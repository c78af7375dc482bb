"""A CUDA GPU as a device: whether torch sees one, its fast types, its memory."""

from __future__ import annotations

import torch

from xllm_framework.errors import XLLMError
from xllm_runtime.platform.interface import DeviceMemory

BFLOAT16_CAPABILITY = (8, 0)
"""Compute capability from which tensor cores take bfloat16 (CUDA C++ Programming Guide, section on capabilities)."""


def why_unavailable(index: int = 0) -> str | None:
    """Return why GPU `index` cannot be used, or None when it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA driver or no GPU"
    if index >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} GPUs, numbered from 0"
    return None


class CUDAPlatform:
    """GPU `index` of this machine."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)  # kernels start on the current device

    def default_dtype(self, checkpoint_dtype: torch.dtype) -> torch.dtype:
        """Return a type that tensor cores take: bfloat16 for all but float16; on GPUs without it float16 in its place.

        There float32 stays, as its numbers may be too large for float16.
        """
        if torch.cuda.get_device_capability(self.device) >= BFLOAT16_CAPABILITY:
            return checkpoint_dtype if checkpoint_dtype == torch.float16 else torch.bfloat16
        return torch.float16 if checkpoint_dtype == torch.bfloat16 else checkpoint_dtype

    def memory(self) -> DeviceMemory:
        """Return the GPU's memory; what torch has cached but does not use counts as available."""
        available, total = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return DeviceMemory(total, available + cached)

    def set_threads(self, threads: int) -> int:
        """Set the threads of what stays on the CPU; 0 takes one, as the GPU computes."""
        torch.set_num_threads(threads or 1)
        return threads or 1

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros on the GPU."""
        try:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            raise XLLMError(f"The GPU has no memory for a tensor of shape {shape} in {dtype}.") from error
