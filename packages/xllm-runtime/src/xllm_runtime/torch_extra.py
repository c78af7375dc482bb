"""Whether torch is installed, and what adds it. Knows nothing of what needs it, and does not import it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

INSTALL_TORCH = "Add it with: uv pip install 'xllm-runtime[torch]'"
"""A sentence of advice without its full stop, for the end of a message."""


@cache
def has_torch() -> bool:
    """Whether `import torch` would find something."""
    return find_spec("torch") is not None
