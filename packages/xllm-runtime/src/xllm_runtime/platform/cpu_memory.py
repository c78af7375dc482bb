"""How much main memory this process can use. Knows nothing of what it is used for.

Source: proc(5) for /proc/meminfo, Linux Documentation/admin-guide/cgroup-v2.rst (memory controller) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from pathlib import Path

from xllm_runtime.platform.control_group import control_group_folders
from xllm_runtime.platform.interface import DeviceMemory

MEMORY_TABLE = Path("/proc/meminfo")
ASSUMED_BYTES = 4 * 2**30
"""Where a system does not tell."""


def main_memory(table: Path = MEMORY_TABLE, folders: list[Path] | None = None) -> DeviceMemory:
    """Return the machine's memory, cut down to the tightest limit of the control groups in `folders`."""
    total, available = _machine_memory(table)
    for folder in control_group_folders("memory") if folders is None else folders:
        limit, used = _group_memory(folder)
        if limit is not None:
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
    return DeviceMemory(total, available)


def _machine_memory(table: Path) -> tuple[int, int]:
    """Return total and available bytes from lines like "MemTotal:  263921 kB"."""
    try:
        fields = {name: value for name, _, value in (line.partition(":") for line in table.read_text().splitlines())}
        total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return ASSUMED_BYTES, ASSUMED_BYTES
    return total, available


def _group_memory(folder: Path) -> tuple[int | None, int]:
    """Return (limit, bytes in use without droppable file pages) of one group; None without a limit."""
    version2 = (folder / "memory.max").exists()
    limit_file, usage_file = (
        ("memory.max", "memory.current") if version2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    try:
        limit = int((folder / limit_file).read_text())  # "max" is no number: no limit
        used = int((folder / usage_file).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None, 0
    droppable = int(statistics.get("inactive_file" if version2 else "total_inactive_file", 0))
    return limit, max(used - droppable, 0)
