"""How a step is executed on the device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Execution options."""

    threads: int = 0
    """Compute threads on CPU; 0 takes one a physical core that this process may use."""
    profile_dir: str = ""
    """Folder for what /start_profile and /stop_profile record; empty refuses them."""
    check_integrity: bool = False
    """Check every invariant of the cache after each step (slow; for tests and for reports of faults)."""
