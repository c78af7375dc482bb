"""What a model is, told by its files: arguments, capabilities, where it lies."""

from xllm_framework.model.model_args import ModelArgs, RopeScaling

__all__ = ["ModelArgs", "RopeScaling"]
