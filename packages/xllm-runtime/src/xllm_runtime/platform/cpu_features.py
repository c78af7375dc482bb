"""What the CPU's instructions are good at. Knows nothing of kernels: those look for themselves.

Source: proc(5) for /proc/cpuinfo, and the feature names of Linux for x86 and Arm.
"""

from __future__ import annotations

from pathlib import Path

NATIVE_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As /proc/cpuinfo calls them: AVX-512 BF16 and AMX on x86, BF16 on Arm."""


def has_native_bfloat16(cpu_table: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions that multiply bfloat16; elsewhere float32 is faster."""
    try:
        lines = cpu_table.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not NATIVE_BFLOAT16_FLAGS.isdisjoint(flags.split())
