"""Which device computes, and what it is good at. The only place that asks torch about CUDA or NPU devices.

Knows nothing of models, batches or kernels. Importing it imports no torch; choosing a platform does.
"""

from xllm_runtime.platform.interface import DeviceMemory, Platform
from xllm_runtime.platform.selection import NULL_DEVICE, select_platform, selects_cpu

__all__ = ["NULL_DEVICE", "DeviceMemory", "Platform", "select_platform", "selects_cpu"]
