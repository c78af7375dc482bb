"""What a model is, told by its files: arguments, capabilities, where it lies."""

from xllm_framework.model.loading import load_model_args, open_gguf
from xllm_framework.model.model_args import ModelArgs, RopeScaling
from xllm_framework.model.source import ModelFiles, resolve_model

__all__ = ["ModelArgs", "ModelFiles", "RopeScaling", "load_model_args", "open_gguf", "resolve_model"]
