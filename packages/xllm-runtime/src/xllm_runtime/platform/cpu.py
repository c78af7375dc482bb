"""The CPU as a device: its fast types, its memory, its threads."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

import xllm_kernels
from xllm_framework.errors import InvalidConfig, XLLMError
from xllm_runtime.platform.cpu_cores import usable_cores
from xllm_runtime.platform.cpu_memory import main_memory
from xllm_runtime.platform.interface import DeviceMemory

NATIVE_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As /proc/cpuinfo calls them: AVX-512 BF16 and AMX on x86, BF16 on Arm."""
MAX_THREADS = 1024


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
        if not 0 <= threads <= MAX_THREADS:
            raise InvalidConfig(f"threads must be from 0 (one a physical core) to {MAX_THREADS}, not {threads}.")
        threads = threads or min(usable_cores(), MAX_THREADS)
        torch.set_num_threads(threads)
        xllm_kernels.set_num_threads(threads)
        return threads

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros whose pages the system maps on first use; `torch.zeros` would touch them all now."""
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            pages = np.zeros(num_bytes, np.uint8)
        except MemoryError as error:
            raise XLLMError(f"There is no memory for a tensor of {num_bytes} bytes.") from error
        return torch.from_numpy(pages).view(dtype).view(shape)


def has_native_bfloat16(cpu_table: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions that multiply bfloat16; elsewhere float32 is faster."""
    try:
        lines = cpu_table.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not NATIVE_BFLOAT16_FLAGS.isdisjoint(flags.split())
