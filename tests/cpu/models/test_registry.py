"""Which implementation is chosen, and what is said when none fits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from support.loaded_models import model_files
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import ModelConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, RopeScaling, load_model_args
from xllm_runtime.models import select_model, third_party
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM


@pytest.fixture(scope="module")
def llama() -> ModelArgs:
    return load_model_args(model_files(tiny_checkpoint("llama")))


def test_known_architectures_are_python_models(llama):
    for architecture in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        choice = select_model(dataclasses.replace(llama, architecture=architecture), ModelConfig())
        assert choice.model_impl == "python"
        assert isinstance(choice.build(llama, torch.float32), CausalLM)


def test_others_fall_to_transformers():
    args = load_model_args(model_files(tiny_checkpoint("gpt2")))
    assert select_model(args, ModelConfig()).model_impl == "transformers"


def test_the_option_decides(llama):
    assert select_model(llama, ModelConfig(model_impl="transformers")).model_impl == "transformers"
    assert select_model(llama, ModelConfig(model_impl="python", quantization="none")).model_impl == "python"
    with pytest.raises(UnsupportedModel, match="python: quantization int8 is for the native implementation only"):
        select_model(llama, ModelConfig(model_impl="python", quantization="int8"))


def test_no_fit_prints_every_reason(llama):
    args = dataclasses.replace(llama, architecture="NobodyForCausalLM", model_type="nobody", raw={"auto_map": {}})
    with pytest.raises(UnsupportedModel) as caught:
        select_model(args, ModelConfig())
    for part in ("'NobodyForCausalLM'", "python: only ", "LlamaForCausalLM", "transformers: transformers "):
        assert part in caught.value.message
    assert "\n" not in caught.value.message


def test_settings_that_a_model_lacks_are_named(llama):
    args = dataclasses.replace(
        llama,
        activation="gelu",
        rope_scaling=RopeScaling(kind="spiral"),
        raw={"quantization_config": {"quant_method": "gptq", "bits": 3}},
    )
    with pytest.raises(UnsupportedModel) as caught:
        select_model(args, ModelConfig(model_impl="python"))
    for reason in ("activation 'gelu' is not silu", "rope type 'spiral' is unknown", "gptq with 3 bits"):
        assert reason in caught.value.message


def test_third_parties_come_first(llama, monkeypatch):
    point = EntryPoint("LlamaForCausalLM", f"{__name__}:ThirdPartyLlama", third_party.ENTRY_POINT_GROUP)
    monkeypatch.setattr(third_party, "entry_points", lambda group: [point])
    choice = select_model(llama, ModelConfig())
    assert isinstance(choice.build(llama, torch.float32), ThirdPartyLlama)


def test_a_third_party_that_cannot_be_imported_is_named(llama, monkeypatch):
    point = EntryPoint("LlamaForCausalLM", "no_such_package.models:Llama", third_party.ENTRY_POINT_GROUP)
    monkeypatch.setattr(third_party, "entry_points", lambda group: [point])
    with pytest.raises(UnsupportedModel, match=r"no_such_package\.models:Llama cannot be imported"):
        select_model(llama, ModelConfig(model_impl="python"))


def test_choosing_a_python_model_imports_no_transformers():
    program = (
        "import sys\n"
        "from xllm_framework.config import ModelConfig, LoadConfig\n"
        "from xllm_framework.model import load_model_args, resolve_model\n"
        "from xllm_runtime.models import select_model\n"
        "assert select_model(load_model_args(resolve_model('', LoadConfig())), ModelConfig()).model_impl == 'python'\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class ThirdPartyLlama(LlamaForCausalLM):
    """What an entry point names."""
