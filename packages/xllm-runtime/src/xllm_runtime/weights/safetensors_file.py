"""Safetensors files as torch's tensors: views of the mapped file. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from xllm_runtime.weights.checkpoint_folder import checkpoint_files
from xllm_runtime.weights.safetensors_layout import MappedSafetensors, TensorEntry

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsFile(MappedSafetensors):
    """A mapped safetensors file; raises `ModelLoadError` when it is cut or broken."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._storage = torch.frombuffer(self.mapped, dtype=torch.uint8)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a view of the mapped file; raises `ModelLoadError` when there is no such tensor."""
        return typed_view(self._storage, self.entry(name), self.data_start)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.entries:
            yield name, self.tensor(name)


def folder_weights(folder: Path, wanted: Callable[[str], bool] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) shard after shard, of the `wanted` names alone; opens no shard that has none of them.

    Raises `ModelLoadError` naming what is missing or broken.
    """
    for path, listed in checkpoint_files(folder):
        names = listed if wanted is None or listed is None else [name for name in listed if wanted(name)]
        if names == []:
            continue
        file = SafetensorsFile(path)
        for name in file.entries if names is None else names:
            if wanted is None or wanted(name):
                yield name, file.tensor(name)


def typed_view(storage: torch.Tensor, entry: TensorEntry, data_start: int) -> torch.Tensor:
    """Return the tensor of `entry` in `storage`, the file's bytes as uint8; a copy only when it lies unaligned."""
    raw = storage[data_start + entry.start : data_start + entry.end]
    dtype = DTYPES[entry.dtype]
    if raw.data_ptr() % dtype.itemsize or raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(entry.shape)
