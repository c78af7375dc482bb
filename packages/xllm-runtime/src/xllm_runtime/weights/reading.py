"""The tensors of a model's files for torch, whatever their format. Knows nothing of what becomes of them.

Imports torch when the first tensor is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING

from xllm_framework.config import LoadConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.weights.bare_layers import full_name
from xllm_runtime.weights.quantisation import quantisation_of

if TYPE_CHECKING:
    import torch


def load_weights(
    files: ModelFiles,
    args: ModelArgs,
    dtype: torch.dtype,
    load: LoadConfig | None = None,
    kept: Container[str] = (),
    device: torch.device | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, tensor) one at a time; nothing is read before the first is asked for.

    They lie on the CPU; but a GGUF file's on `device`, if that is named and can make numbers of what is stored.

    The tensors are views of mapped files: keeping one keeps its file mapped, and none may be written to. Safetensors
    come in the dtype that they are stored in, GGUF tensors and quantised matrices in `dtype`; those of `kept` layers (by
    Hugging Face's names) as the pieces that the checkpoint has of them. Only those of the folder's names that are `wanted`
    are looked at, if it is given. Raises `ModelLoadError` naming the file.
    """
    if files.kind == "hf":
        from xllm_runtime.weights.dequantise import dequantised
        from xllm_runtime.weights.safetensors_file import folder_weights

        scheme, weights = quantisation_of(args), folder_weights(files.path, wanted)
        for name, tensor in weights if scheme is None else dequantised(weights, scheme, dtype, kept):
            yield full_name(name, args), tensor
    else:
        from xllm_runtime.weights.gguf_weights import gguf_weights

        yield from gguf_weights(files.path, args, dtype, (load or LoadConfig()).cache_dir, device)
