"""The weights of a GGUF file, dequantised, under Hugging Face names. Knows nothing of where converted copies live.

llama.cpp stores the rows of q and k of its `llama` architecture for interleaved rotary embedding; here they go back to
the half-split order that Hugging Face checkpoints have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs
from xllm_framework.model.gguf_file import GGUFFile, GGUFTensor
from xllm_runtime.weights.converted_copy import ConvertedCopy
from xllm_runtime.weights.gguf_names import CONFIGURATION_TENSORS, hugging_face_name, storage_order
from xllm_runtime.weights.safetensors_file import TensorEntry, lay_out, typed_view

CHUNK_ELEMENTS = 1 << 16
"""Elements dequantised at a time: the intermediate arrays stay in the cache, and memory stays flat."""
MAX_THREADS = 8
"""More would only wait for the interpreter between numpy's calls."""
INTERLEAVED_ARCHITECTURE = "llama"


def gguf_weights(path: Path, args: ModelArgs, dtype: torch.dtype, cache_dir: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, tensor in `dtype`) of the GGUF file at `path`.

    The first time, the dequantised tensors are written to a copy under `cache_dir` ("" is the user's cache), which later
    starts map. Where no copy can be written, they lie in memory. Raises `ModelLoadError` naming the tensor.
    """
    copy = ConvertedCopy(path, dtype, cache_dir)
    existing = copy.open()
    if existing is not None:
        yield from existing
        return
    conversions = _plan(path, args)
    header, entries = lay_out([(c.name, dtype, c.tensor.shape) for c in conversions])
    storage = copy.allocate(header, entries[-1].end)
    _convert_all(conversions, entries, storage, len(header))
    copy.publish()
    for entry in entries:
        yield entry.name, typed_view(storage, entry, len(header))


@dataclass(frozen=True, slots=True)
class _Conversion:
    """One tensor to convert; output row i is the file's row `row_order[i]`."""

    name: str
    tensor: GGUFTensor
    row_order: npt.NDArray[np.int64]


def _plan(path: Path, args: ModelArgs) -> list[_Conversion]:
    # A mapping of its own, not the shared one that lives on: what conversion read leaves the process with it.
    tensors = {n: t for n, t in GGUFFile(path).tensors.items() if n not in CONFIGURATION_TENSORS}
    unknown = [name for name in tensors if hugging_face_name(name) is None]
    if unknown:
        raise ModelLoadError(f"tensor {unknown[0]!r} of {path} is unknown in a model of type {args.model_type!r}")
    if not tensors:
        raise ModelLoadError(f"{path} holds no tensors")
    return [
        _Conversion(str(hugging_face_name(name)), tensors[name], _row_order(name, tensors[name], args))
        for name in sorted(tensors, key=storage_order)
    ]


def _row_order(name: str, tensor: GGUFTensor, args: ModelArgs) -> npt.NDArray[np.int64]:
    """Return the file's row of each output row: [heads, half, 2] in the file becomes [heads, 2, half]."""
    rows = np.arange(tensor.shape[0])
    part = name.split(".")[-2]
    if args.model_type != INTERLEAVED_ARCHITECTURE or part not in ("attn_q", "attn_k"):
        return rows
    heads = args.num_heads if part == "attn_q" else args.num_kv_heads
    if len(rows) % (2 * heads):
        raise ModelLoadError(f"tensor {name!r} has {len(rows)} rows, which {heads} heads cannot share")
    return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _convert_all(
    conversions: list[_Conversion], entries: list[TensorEntry], storage: torch.Tensor, data_start: int
) -> None:
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "xllm-gguf") as pool:
        targets = [typed_view(storage, entry, data_start) for entry in entries]
        for _ in pool.map(_convert, conversions, targets):
            pass  # re-raises what a conversion raised


def _convert(conversion: _Conversion, target: torch.Tensor) -> None:
    """Dequantise the tensor into `target`, some rows at a time."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    tensor, order = conversion.tensor, conversion.row_order
    quantization = GGMLQuantizationType[tensor.ggml_type]
    raw: npt.NDArray[np.uint8] = np.asarray(tensor.raw).reshape(len(order), -1)
    rows = target.view(len(order), -1)
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    try:
        for start in range(0, len(order), step):
            _store(dequantize(raw[order[start : start + step]], quantization), rows[start : start + step])
    except NotImplementedError as error:
        raise ModelLoadError(
            f"tensor {tensor.name!r} has type {tensor.ggml_type}, which the gguf package cannot dequantise"
        ) from error


def _store(values: npt.NDArray[np.float32], target: torch.Tensor) -> None:
    """Write float32 `values` to `target` of the same shape, rounding to nearest even.

    With numpy, as torch would start its own threads for every chunk, in every thread of the pool.
    """
    if target.dtype == torch.bfloat16:
        bits = values.view(np.uint32)
        target.view(torch.uint16).numpy()[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        target.numpy()[...] = values
