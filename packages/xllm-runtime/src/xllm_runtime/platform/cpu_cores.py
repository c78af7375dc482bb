"""How many cores this process may really compute on, and how many threads our kernels take.

Reads the affinity mask, the topology and the control group.

Source: Linux Documentation/admin-guide/cputopology.rst and cgroup-v2.rst. On other systems the logical count is returned.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import xllm_kernels
from xllm_framework.errors import InvalidConfig
from xllm_runtime.platform.control_group import control_group_folders

MAX_THREADS = 1024
CPU_FOLDER = Path("/sys/devices/system/cpu")


def set_kernel_threads(threads: int) -> int:
    """Set the threads of our kernels to `threads`, or to the usable physical cores for 0; return how many there are now.

    Raises:
        InvalidConfig: there cannot be so many.
    """
    if not 0 <= threads <= MAX_THREADS:
        raise InvalidConfig(f"threads must be from 0 (one a physical core) to {MAX_THREADS}, not {threads}.")
    threads = threads or min(usable_cores(), MAX_THREADS)
    xllm_kernels.set_num_threads(threads)
    return threads


def usable_cores() -> int:
    """Return the physical cores behind the affinity mask, within the control group's CPU quota; at least 1.

    Two hardware threads of one core share its arithmetic units, so a second one adds nothing to matrix products.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = physical_cores(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, cpu_quota(control_group_folders("cpu"))))


def physical_cores(cpus: set[int], cpu_folder: Path = CPU_FOLDER) -> int:
    """Return how many physical cores the logical `cpus` belong to; those without topology count as one each."""
    siblings = set()
    for cpu in cpus:
        try:
            siblings.add((cpu_folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            siblings.add(f"alone {cpu}")
    return len(siblings)


def cpu_quota(folders: list[Path]) -> int:
    """Return the smallest CPU quota of the control group and its parents in whole CPUs, rounded up."""
    quotas = [_quota(folder) for folder in folders]
    return max(1, math.ceil(min(quotas, default=math.inf))) if any(map(math.isfinite, quotas)) else 2**31


def _quota(folder: Path) -> float:
    """Return CPUs of one group: `cpu.max` holds "quota period" in version 2, two files hold them in version 1."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
