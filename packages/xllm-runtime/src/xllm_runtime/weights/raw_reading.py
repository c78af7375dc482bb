"""The tensors of a model's files as they are stored, whatever their format. Knows nothing of what becomes of them.

Imports no torch; see `reading` for tensors that torch computes with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.weights.bare_layers import full_name
from xllm_runtime.weights.checkpoint_folder import checkpoint_files
from xllm_runtime.weights.gguf_tensors import gguf_tensors
from xllm_runtime.weights.raw_tensor import RawTensor
from xllm_runtime.weights.safetensors_layout import MappedSafetensors


def raw_weights(files: ModelFiles, args: ModelArgs) -> Iterator[RawTensor]:
    """Yield the tensors one at a time, as views of mapped files. Raises `ModelLoadError` naming the file or tensor."""
    if files.kind == "gguf":
        yield from gguf_tensors(files.path, args)
        return
    for path, names in checkpoint_files(files.path):
        file = MappedSafetensors(path)
        for name in file.entries if names is None else names:
            raw = file.raw(name)
            yield replace(raw, name=full_name(name, args))
