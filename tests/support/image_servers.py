"""Masters of tiny image models, and apps over them, for tests of the image routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xllm_framework.config import XLLMConfig
from xllm_runtime.master.dit import DiTMaster
from xllm_runtime.master.selection import create_master

DIGITS = Path(__file__).parents[2] / "examples" / "dit_digits" / "model"


@contextmanager
def image_master(folder: Path, **options: Any) -> Iterator[DiTMaster]:
    """Yield the master of a folder, its engine side in a thread."""
    config = XLLMConfig.from_flat(
        {"model": str(folder), "model_id": "tiny", "device": "cpu", "threads": 1, "check_integrity": True, **options}
    )
    master: Any = create_master(config, engine_process=False)
    assert isinstance(master, DiTMaster)
    try:
        yield master
    finally:
        master.close()
