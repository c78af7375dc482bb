"""The tensors of a GGUF file as they are stored, under Hugging Face names. Knows nothing of what becomes of them.

llama.cpp stores the rows of q and k of its `llama` architecture for interleaved rotary embedding; `permuted_heads` tells.
"""

from __future__ import annotations

from pathlib import Path

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs
from xllm_framework.model.gguf_file import GGUFFile, GGUFTensor
from xllm_runtime.weights.gguf_names import CONFIGURATION_TENSORS, hugging_face_name, storage_order
from xllm_runtime.weights.raw_tensor import RawTensor

INTERLEAVED_ARCHITECTURE = "llama"


def gguf_tensors(path: Path, args: ModelArgs) -> list[RawTensor]:
    """Return the weights of a model of the Llama family, those that are used stacked as neighbours.

    Raises `ModelLoadError` for a tensor that such a model does not have.
    """
    # A mapping of its own, not the shared one that lives on: what is read leaves the process with it.
    tensors = {name: t for name, t in GGUFFile(path).tensors.items() if name not in CONFIGURATION_TENSORS}
    unknown = [name for name in tensors if hugging_face_name(name) is None]
    if unknown:
        raise ModelLoadError(f"tensor {unknown[0]!r} of {path} is unknown in a model of type {args.model_type!r}")
    if not tensors:
        raise ModelLoadError(f"{path} holds no tensors")
    return [_raw_tensor(tensors[name], args) for name in sorted(tensors, key=storage_order)]


def _raw_tensor(tensor: GGUFTensor, args: ModelArgs) -> RawTensor:
    heads = _permuted_heads(tensor, args)
    return RawTensor(str(hugging_face_name(tensor.name)), tensor.ggml_type, tensor.shape, tensor.raw, heads)


def _permuted_heads(tensor: GGUFTensor, args: ModelArgs) -> int:
    part = tensor.name.split(".")[-2]
    if args.model_type != INTERLEAVED_ARCHITECTURE or part not in ("attn_q", "attn_k"):
        return 0
    heads = args.num_heads if part == "attn_q" else args.num_kv_heads
    if tensor.shape[0] % (2 * heads):
        raise ModelLoadError(f"tensor {tensor.name!r} has {tensor.shape[0]} rows, which {heads} heads cannot share")
    return heads
