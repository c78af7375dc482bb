"""How a worker builds its model: in which type, on which device, and what it says when memory ends."""

from pathlib import Path

import pytest
import torch

from support.script_engine import SCRIPT_ARGS
from xllm_framework.config import LoadConfig, ModelConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelFiles
from xllm_runtime.models.registry import ModelChoice
from xllm_runtime.platform.cpu import CPUPlatform
from xllm_runtime.worker.loading import load_model, select_dtype

FILES = ModelFiles(Path("nowhere"), "hf", "the-model")
CPU = torch.device("cpu")
DUMMY = LoadConfig(load_format="dummy")


class OneMatrix(torch.nn.Module):
    """As much of a model as loading needs."""

    def __init__(self, args: object, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 4), float("nan"), dtype=dtype))


def test_an_explicit_type_is_taken_and_auto_asks_the_platform():
    assert select_dtype(ModelConfig(dtype="bfloat16"), SCRIPT_ARGS, CPUPlatform()) == torch.bfloat16
    assert select_dtype(ModelConfig(dtype="float16"), SCRIPT_ARGS, CPUPlatform()) == torch.float16
    assert select_dtype(ModelConfig(), SCRIPT_ARGS, CPUPlatform()) == torch.float32


def test_the_model_takes_its_weights_and_no_gradients():
    model = load_model(ModelChoice("python", OneMatrix), FILES, SCRIPT_ARGS, DUMMY, torch.bfloat16, CPU)
    assert model.weight.dtype == torch.bfloat16
    assert torch.isfinite(model.weight).all()
    assert not model.weight.requires_grad
    assert not model.training


def test_the_model_is_built_on_its_device():
    devices = []

    def build(args: object, dtype: torch.dtype) -> OneMatrix:
        devices.append(torch.empty(0).device)
        with CPU:
            return OneMatrix(args, dtype)

    load_model(ModelChoice("python", build), FILES, SCRIPT_ARGS, DUMMY, torch.float32, torch.device("meta"))
    assert devices == [torch.device("meta")]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_names_the_model(error):
    def build(args: object, dtype: torch.dtype) -> torch.nn.Module:
        raise error

    with pytest.raises(ModelLoadError, match="too little memory for the weights of the-model"):
        load_model(ModelChoice("python", build), FILES, SCRIPT_ARGS, DUMMY, torch.float32, CPU)


def test_other_errors_pass_unchanged():
    def build(args: object, dtype: torch.dtype) -> torch.nn.Module:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        load_model(ModelChoice("python", build), FILES, SCRIPT_ARGS, DUMMY, torch.float32, CPU)
