"""Tensors of checkpoints under their Hugging Face names. Knows files and formats, nothing of models or layers."""

from xllm_runtime.weights.reading import load_weights

__all__ = ["load_weights"]
