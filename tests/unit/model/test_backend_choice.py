"""Which backend serves which files."""

from __future__ import annotations

import json

import pytest

from xllm_framework.config import ModelConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model.source import ModelFiles
from xllm_runtime.backend import REC_ARCHITECTURES, VLM_ARCHITECTURES, choose_backend


def _folder(tmp_path, architectures) -> ModelFiles:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    return ModelFiles(tmp_path, "hf", "m")


def test_auto_goes_by_the_files(tmp_path):
    auto = ModelConfig()
    assert choose_backend(auto, ModelFiles(tmp_path, "gguf", "m")) == "llm"
    assert choose_backend(auto, ModelFiles(tmp_path, "diffusers", "m")) == "dit"
    assert choose_backend(auto, _folder(tmp_path, ["LlamaForCausalLM"])) == "llm"
    for architectures, backend in ((VLM_ARCHITECTURES, "vlm"), (REC_ARCHITECTURES, "rec")):
        for name in architectures:
            assert choose_backend(auto, _folder(tmp_path, [name])) == backend


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"architectures": 3}', '{"architectures": [1]}', "\xff"])
def test_a_broken_config_is_left_to_the_loader(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert choose_backend(ModelConfig(), ModelFiles(tmp_path, "hf", "m")) == "llm"


@pytest.mark.parametrize(
    ("backend", "kind"), [("dit", "hf"), ("dit", "gguf"), ("llm", "diffusers"), ("rec", "diffusers")]
)
def test_a_backend_refuses_files_that_it_does_not_read(tmp_path, backend, kind):
    with pytest.raises(UnsupportedModel, match=f"The {backend} backend needs"):
        choose_backend(ModelConfig(backend=backend), ModelFiles(tmp_path, kind, "m"))


def test_a_named_backend_is_taken(tmp_path):
    assert choose_backend(ModelConfig(backend="rec"), _folder(tmp_path, ["Qwen3ForCausalLM"])) == "rec"
