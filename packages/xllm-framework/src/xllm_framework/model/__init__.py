"""What a model is, told by its files: arguments, capabilities, where it lies.

Names are imported when they are first asked for: where a model lies is found before anything that takes long is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xllm_framework.model.loading import load_model_args, open_gguf
    from xllm_framework.model.model_args import ModelArgs, RopeScaling
    from xllm_framework.model.source import ModelFiles, resolve_model

__all__ = ["ModelArgs", "ModelFiles", "RopeScaling", "load_model_args", "open_gguf", "resolve_model"]

_HOMES = {
    "ModelArgs": "xllm_framework.model.model_args",
    "ModelFiles": "xllm_framework.model.source",
    "RopeScaling": "xllm_framework.model.model_args",
    "load_model_args": "xllm_framework.model.loading",
    "open_gguf": "xllm_framework.model.loading",
    "resolve_model": "xllm_framework.model.source",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
