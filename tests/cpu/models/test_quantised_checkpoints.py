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
from xllm_kernels.quantised_matrix import numbers
from xllm_runtime.layers.quantised_experts import QuantisedSparseMLP
from xllm_runtime.layers.quantised_linear import QuantisedLinear
from xllm_runtime.models import select_model
from xllm_runtime.models.native import explain_native
from xllm_runtime.weights.dummy import fill_dummy_weights
from xllm_runtime.weights.quantisation import quantisation_of

TOKENS = [7, 3, 200, 41, 5, 9, 77, 130, 12]
TORCH = {"attention_backend": "sdpa", "operations": "torch"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}
"""Large enough for groups of 128 columns."""


def logits_of(folder) -> torch.Tensor:
    return PagedRunner(load_tiny(folder, **TORCH)).run_chunked(0, TOKENS, len(TOKENS))


@pytest.mark.parametrize("form", CONFIGS)
def test_a_quantised_checkpoint_gives_the_logits_of_its_values(form, tmp_path):
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3", head_dim=16), form, tmp_path)
    expected = logits_of(plain)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits_of(quantised), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("form", ["fp8-block", "fp8-tensor", "w8a8", "packed", "awq", "gptq"])
def test_matrices_may_stay_as_they_are_stored(form, tmp_path):
    """As on a GPU, but with torch to make them plain for each product."""
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3", **WIDE), form, tmp_path, group=128)
    model = load_tiny(quantised, kept="always", **TORCH)
    kept = [part for part in model.modules() if isinstance(part, QuantisedLinear)]
    assert len(kept) == 4 * 3
    assert all(part.matrix is not None and not part.weight.numel() for part in kept)
    assert sum(part.matrix.num_bytes for part in kept) < sum(part.matrix.n * part.matrix.k for part in kept) * 1.05
    found = PagedRunner(model).run_chunked(0, TOKENS, len(TOKENS))
    torch.testing.assert_close(found, logits_of(plain), atol=2e-4, rtol=0)


def test_layers_that_are_stored_plain_stay_so(tmp_path):
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3", **WIDE), "w8a8", tmp_path, group=128)
    tensors, others = load_file(quantised / "model.safetensors"), load_file(plain / "model.safetensors")
    for layer in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        del tensors[f"{layer}.weight_scale"]
        tensors[f"{layer}.weight"] = others[f"{layer}.weight"]
    save_file(tensors, quantised / "model.safetensors")
    found = PagedRunner(load_tiny(quantised, kept="always", **TORCH)).run_chunked(0, TOKENS, len(TOKENS))
    torch.testing.assert_close(found, logits_of(plain), atol=2e-4, rtol=0)


def test_columns_in_an_order_that_nobody_told_of_are_refused(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", **WIDE), "gptq", tmp_path, group=128)
    tensors = load_file(quantised / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.g_idx"] = (torch.arange(256) // 128).flip(0).to(torch.int32)
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.0\.mlp\.down_proj.*g_idx"):
        load_tiny(quantised, kept="always", **TORCH)


def test_a_layer_that_is_not_there_is_named(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", **WIDE), "awq", tmp_path, group=128)
    tensors = load_file(quantised / "model.safetensors")
    for piece in ("qweight", "qzeros", "scales"):
        del tensors[f"model.layers.2.mlp.up_proj.{piece}"]
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.2\.mlp\.up_proj\.qweight'"):
        load_tiny(quantised, kept="always", **TORCH)


def test_dummy_weights_are_of_the_checkpoints_form(tmp_path):
    quantised, _ = quantised_pair(tiny_checkpoint("qwen3", **WIDE), "fp8-block", tmp_path, group=128)
    args = load_model_args(model_files(quantised))
    model = select_model(args, ModelConfig()).build(args, torch.float32, kept="always", **TORCH)
    fill_dummy_weights(model)
    part = next(part for part in model.modules() if isinstance(part, QuantisedLinear))
    assert part.matrix is not None
    assert part.matrix.block_scales is not None
    assert 0.015 < numbers(part.matrix).std() < 0.025


def test_experts_may_be_quantised(tmp_path):
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3_moe", **EXPERTS), "fp8-block", tmp_path)
    assert any(
        name.endswith("experts.0.up_proj.weight_scale_inv") for name in load_file(quantised / "model.safetensors")
    )
    torch.testing.assert_close(logits_of(quantised), logits_of(plain), atol=2e-4, rtol=0)


def test_experts_may_stay_as_they_are_stored(tmp_path):
    sizes = {**EXPERTS, "hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 64}
    quantised, plain = quantised_pair(tiny_checkpoint("qwen3_moe", **sizes), "fp8-block", tmp_path, group=128)
    model = load_tiny(quantised, kept="always", **TORCH)
    assert sum(isinstance(part, QuantisedSparseMLP) for part in model.modules()) == 3
    assert all(part.matrix is not None for part in model.modules() if isinstance(part, QuantisedLinear))
    found = PagedRunner(model).run_chunked(0, TOKENS, len(TOKENS))
    torch.testing.assert_close(found, logits_of(plain), atol=2e-4, rtol=0)


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
