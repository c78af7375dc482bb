"""Quantised checkpoints against plain ones of the same values, which transformers' logits are proven on elsewhere."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.loaded_models import load_tiny, model_files
from support.paged_runner import PagedRunner
from support.quantised_checkpoints import CONFIGS, quantised_pair
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import ModelConfig
from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model import load_model_args
from xllm_runtime.models import select_model
from xllm_runtime.models.native import explain_native
from xllm_runtime.weights.quantisation import quantisation_of

TOKENS = [7, 3, 200, 41, 5, 9, 77, 130, 12]
TORCH = {"attention_backend": "sdpa", "operations": "torch"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


def logits_of(folder) -> torch.Tensor:
    return PagedRunner(load_tiny(folder, **TORCH)).run_chunked(0, TOKENS, len(TOKENS))


@pytest.mark.parametrize("form", CONFIGS)
def test_a_quantised_checkpoint_gives_the_logits_of_its_values(form, tmp_path):
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), form, tmp_path)
    expected = logits_of(plain)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits_of(quantised), expected, atol=2e-4, rtol=0)


def test_experts_may_be_quantised(tmp_path):
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3_moe", **EXPERTS), "fp8-block", tmp_path)
    assert any(
        name.endswith("experts.0.up_proj.weight_scale_inv") for name in load_file(quantised / "model.safetensors")
    )
    torch.testing.assert_close(logits_of(quantised), logits_of(plain), atol=2e-4, rtol=0)


def test_a_missing_scale_is_named(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), "awq", tmp_path)
    tensors = load_file(quantised / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj.*'scales'"):
        load_tiny(quantised)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), "gptq", tmp_path)
    tensors = load_file(quantised / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.scales"] = tensors["model.layers.1.mlp.up_proj.scales"][:, :5].contiguous()
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj.*scales \[2, 5\]"):
        load_tiny(quantised)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not one of fp8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}, "2 groups"),
    ],
)
def test_what_is_not_known_is_refused_with_a_reason(config, reason, tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), "awq", tmp_path)
    fields = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps({**fields, "quantization_config": config}))
    args = load_model_args(model_files(quantised))
    with pytest.raises(UnsupportedModel, match=reason):
        quantisation_of(args)
    with pytest.raises(UnsupportedModel, match=reason):
        select_model(args, ModelConfig())


def test_the_native_decoder_leaves_quantised_checkpoints_to_torch(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), "gptq", tmp_path)
    reasons = explain_native(load_model_args(model_files(quantised)), ModelConfig(), None)
    assert any("quantised by gptq" in reason for reason in reasons)
