"""The weights of a GGUF file, dequantised for torch. Knows nothing of where converted copies live."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs
from xllm_runtime.weights.converted_copy import ConvertedCopy
from xllm_runtime.weights.gguf_on_device import serves, weights_on_device
from xllm_runtime.weights.gguf_tensors import gguf_tensors
from xllm_runtime.weights.raw_tensor import RawTensor
from xllm_runtime.weights.safetensors_file import DTYPE_NAMES, typed_view
from xllm_runtime.weights.safetensors_layout import TensorEntry, lay_out

CHUNK_ELEMENTS = 1 << 16
"""Elements dequantised at a time: the intermediate arrays stay in the cache, and memory stays flat."""
MAX_THREADS = 8
"""More would only wait for the interpreter between numpy's calls."""


def gguf_weights(
    path: Path, args: ModelArgs, dtype: torch.dtype, cache_dir: str, device: torch.device | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, tensor in `dtype`) of the GGUF file at `path`.

    Where `device` can make numbers of what is stored, they are made there. Else they lie on the CPU: the first time, the
    dequantised tensors are written to a copy under `cache_dir` ("" is the user's cache), which later starts map; where no copy can
    be written, in memory. Raises `ModelLoadError` naming the tensor.
    """
    # For a CPU the file is not opened while there is a copy.
    if device is not None and device.type != "cpu" and serves(tensors := gguf_tensors(path, args), device):
        yield from weights_on_device(tensors, dtype, device)
        return
    copy = ConvertedCopy(path, dtype, cache_dir)
    existing = copy.open()
    if existing is not None:
        yield from existing
        return
    tensors = gguf_tensors(path, args)
    header, entries = lay_out([(tensor.name, DTYPE_NAMES[dtype], tensor.shape) for tensor in tensors])
    storage = copy.allocate(header, entries[-1].end)
    _convert_all(tensors, entries, storage, len(header))
    copy.publish()
    for entry in entries:
        yield entry.name, typed_view(storage, entry, len(header))


def _convert_all(tensors: list[RawTensor], entries: list[TensorEntry], storage: torch.Tensor, data_start: int) -> None:
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "xllm-gguf") as pool:
        targets = [typed_view(storage, entry, data_start) for entry in entries]
        for _ in pool.map(_convert, tensors, targets):
            pass  # re-raises what a conversion raised


def _row_order(tensor: RawTensor) -> npt.NDArray[np.int64]:
    """Return the file's row of each output row: [heads, half, 2] in the file becomes [heads, 2, half]."""
    rows = np.arange(tensor.shape[0])
    if not tensor.permuted_heads:
        return rows
    return rows.reshape(tensor.permuted_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _convert(tensor: RawTensor, target: torch.Tensor) -> None:
    """Dequantise the tensor into `target`, some rows at a time."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    order = _row_order(tensor)
    quantization = GGMLQuantizationType[tensor.kind]
    raw: npt.NDArray[np.uint8] = np.asarray(tensor.raw).reshape(len(order), -1)
    rows = target.view(len(order), -1)
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    try:
        for start in range(0, len(order), step):
            _store(dequantize(raw[order[start : start + step]], quantization), rows[start : start + step])
    except NotImplementedError as error:
        raise ModelLoadError(
            f"tensor {tensor.name!r} has type {tensor.kind}, which the gguf package cannot dequantise"
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
