"""How weights are found and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Weight loading options."""

    load_format: Literal["auto", "dummy"] = "auto"
    """auto reads the checkpoint; dummy fills random weights of the right shapes, for benchmarks."""
    download_dir: str = ""
    """Folder for models from the hub; empty takes the hub library's own cache."""
    revision: str = ""
    """Revision of a hub model; empty takes the default branch."""
    cache_dir: str = ""
    """Folder for converted and packed copies of weights; empty takes $XDG_CACHE_HOME/xllm or ~/.cache/xllm."""
