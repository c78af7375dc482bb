"""The CPU as a device: its fast types, its memory, its threads."""

from __future__ import annotations

import math

import numpy as np
import torch

from xllm_framework.errors import XLLMError
from xllm_runtime.platform.cpu_cores import set_kernel_threads
from xllm_runtime.platform.cpu_features import has_native_bfloat16
from xllm_runtime.platform.cpu_memory import main_memory
from xllm_runtime.platform.interface import DeviceMemory


class CPUPlatform:
    """The machine's CPU."""

    name = "cpu"
    device = torch.device("cpu")

    def default_dtype(self, checkpoint_dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16 for such a checkpoint where the CPU multiplies it natively, else float32."""
        if checkpoint_dtype == torch.bfloat16 and has_native_bfloat16():
            return torch.bfloat16
        return torch.float32

    def memory(self) -> DeviceMemory:
        """Return main memory within the limits of the control group."""
        return main_memory()

    def set_threads(self, threads: int) -> int:
        """Set the threads of torch and of our kernels to `threads`, or to the usable physical cores for 0."""
        threads = set_kernel_threads(threads)
        torch.set_num_threads(threads)
        return threads

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros whose pages the system maps on first use; `torch.zeros` would touch them all now."""
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            pages = np.zeros(num_bytes, np.uint8)
        except MemoryError as error:
            raise XLLMError(f"There is no memory for a tensor of {num_bytes} bytes.") from error
        return torch.from_numpy(pages).view(dtype).view(shape)
