"""What a model is, told by its files: arguments, capabilities, where it lies.

Names are imported when they are first asked for: where a model lies is found before anything that takes long is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xllm_framework.lazy_names import names_from

if TYPE_CHECKING:
    from xllm_framework.model.loading import load_model_args, open_gguf
    from xllm_framework.model.model_args import ModelArgs, RopeScaling
    from xllm_framework.model.source import ModelFiles, resolve_model

__all__ = ["ModelArgs", "ModelFiles", "RopeScaling", "load_model_args", "open_gguf", "resolve_model"]

__getattr__ = names_from(
    __name__,
    {
        "ModelArgs": "xllm_framework.model.model_args",
        "ModelFiles": "xllm_framework.model.source",
        "RopeScaling": "xllm_framework.model.model_args",
        "load_model_args": "xllm_framework.model.loading",
        "open_gguf": "xllm_framework.model.loading",
        "resolve_model": "xllm_framework.model.source",
    },
)
