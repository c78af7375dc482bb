"""Which module of Triton kernels serves a tensor, with GPUs and Triton that are only played."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch

import xllm_kernels.triton
from xllm_runtime.layers import triton_modules, vision_operations
from xllm_runtime.models.dit import operations


class OnGPU:
    """A tensor as far as the choice looks at it."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype = torch.bfloat16, *, is_contiguous: bool = True) -> None:
        self.dtype, self._is_contiguous = dtype, is_contiguous

    def is_contiguous(self) -> bool:
        return self._is_contiguous


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, types.ModuleType]]:
    """Both modules of kernels, importable without Triton."""
    played = {name: types.ModuleType(f"xllm_kernels.triton.{name}") for name in ("vision", "images")}
    for module in played.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(xllm_kernels.triton, "why_no_triton", lambda: None)
    triton_modules._module.cache_clear()
    yield played
    triton_modules._module.cache_clear()


def test_each_kind_of_model_has_its_own_module(modules: dict[str, types.ModuleType]) -> None:
    assert operations._gpu_kernels(OnGPU()) is modules["images"]
    assert vision_operations._kernels_for(OnGPU(torch.float16)) is modules["vision"]


def test_other_tensors_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operations._gpu_kernels(OnGPU(torch.float32)) is None
    assert operations._gpu_kernels(torch.zeros(2, dtype=torch.bfloat16)) is None
    assert vision_operations._kernels_for(OnGPU(is_contiguous=False)) is None
    assert vision_operations._kernels_for(torch.zeros(2, dtype=torch.bfloat16)) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert operations._gpu_kernels(OnGPU()) is None


def test_without_triton_there_is_none_and_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(xllm_kernels.triton, "why_no_triton", lambda: asked.append(1) or "no compiler")
    assert operations._gpu_kernels(OnGPU()) is None
    assert operations._gpu_kernels(OnGPU()) is None
    assert len(asked) == 1
