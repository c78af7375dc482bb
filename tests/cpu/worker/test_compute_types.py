"""In which type each backend computes: by option, by what is stored and by device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.script_engine import SCRIPT_ARGS
from support.tiny_pipelines import t5
from xllm_framework.config import ModelConfig, XLLMConfig
from xllm_framework.model import ModelFiles
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_runtime.models.dit.components import load_model
from xllm_runtime.platform import cuda, npu
from xllm_runtime.platform.cpu import CPUPlatform
from xllm_runtime.worker import dit
from xllm_runtime.worker.loading import select_dtype

STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CHOICES = {
    "cpu": ("float32", "float32", "float32"),
    "cpu with bfloat16": ("float32", "bfloat16", "float32"),
    "cuda 9.0": ("bfloat16", "bfloat16", "float16"),
    "cuda 7.5": ("float32", "float16", "float16"),
    "npu": ("float32", "bfloat16", "float16"),
}
"""Device -> what is computed in for each type of `STORED`."""


def platform_of(device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a platform that need not be there."""
    kind, _, more = device.partition(" ")
    if kind == "cpu":
        monkeypatch.setattr("xllm_runtime.platform.cpu.has_native_bfloat16", lambda: bool(more))
        return CPUPlatform()
    if kind == "npu":
        return npu.NPUPlatform.__new__(npu.NPUPlatform)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    capability = tuple(int(part) for part in more.split("."))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    return cuda.CUDAPlatform()


def pipeline_dtype(
    platform: Any, stored: torch.dtype, option: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> torch.dtype:
    """Return the type in which a worker loads a pipeline whose transformer is stored so."""
    loaded: list[torch.dtype] = []

    class Loaded(Exception):
        """Ends the start of the worker."""

    def load(path: Path, pipeline: ImagePipeline, dtype: torch.dtype, device: torch.device) -> None:
        loaded.append(dtype)
        raise Loaded

    (folder / "transformer").mkdir(exist_ok=True)
    tensors = {"count": torch.zeros(1, dtype=torch.int64), "weight": torch.zeros(1, dtype=stored)}
    save_file(tensors, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    monkeypatch.setattr(dit, "select_platform", lambda _: platform)
    monkeypatch.setattr(type(platform), "set_threads", lambda *_: 1)
    monkeypatch.setattr(type(platform), "device", torch.device("cpu"), raising=False)
    monkeypatch.setattr(dit, "load_pipeline", load)
    config = XLLMConfig.from_flat({"dtype": option})
    with pytest.raises(Loaded):
        dit.DiTWorker(
            config, ModelFiles(folder, "hf", "pipeline"), ImagePipeline("FluxPipeline", {}, (64, 64), 8, 1, 0.0)
        )
    return loaded[0]


@pytest.mark.parametrize("device", CHOICES)
def test_language_models_and_pipelines_choose_alike(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = platform_of(device, monkeypatch)
    for (name, stored), expected in zip(STORED.items(), CHOICES[device], strict=True):
        args = replace(SCRIPT_ARGS, dtype=name)
        assert select_dtype(ModelConfig(), args, platform) == STORED[expected]
        assert pipeline_dtype(platform, stored, "auto", tmp_path, monkeypatch) == STORED[expected]
        for option, chosen in STORED.items():
            assert select_dtype(ModelConfig(dtype=option), args, platform) == chosen
            assert pipeline_dtype(platform, stored, option, tmp_path, monkeypatch) == chosen


def test_what_a_text_encoder_keeps_in_float32_stays_so(tmp_path: Path) -> None:
    t5().save_pretrained(tmp_path / "text_encoder_2")
    encoder = load_model(tmp_path, "text_encoder_2", "T5EncoderModel", torch.float16, torch.device("cpu"))
    kept = {name.rsplit(".", 2)[-2] for name, weight in encoder.named_parameters() if weight.dtype == torch.float32}
    assert kept == {"wo"}
