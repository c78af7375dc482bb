"""A KV cache of 8-bit floats against one of the model's own type."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.loaded_models import load_tiny
from support.paged_runner import PagedRunner
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_runtime.attention.sdpa import read_cache, write_cache
from xllm_runtime.models.registry import ModelChoice, with_kv_dtype

TOKENS = [7, 3, 200, 41, 5, 9, 77, 130, 12]
FP8 = {"attention_backend": "sdpa", "operations": "torch", "kv_dtype": torch.float8_e4m3fn}
SCALED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
}


def checkpoint(folder, scales):
    """A tiny model whose checkpoint has `scales` of its cache, by the ends of their names."""
    shutil.copytree(tiny_checkpoint("qwen3", head_dim=16), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.layers.{i}.self_attn.{name}": torch.tensor(v) for i in range(3) for name, v in scales.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": SCALED}))
    return folder


def test_logits_stay_close():
    folder = tiny_checkpoint("qwen3", head_dim=16)
    plain = PagedRunner(load_tiny(folder)).run_chunked(0, TOKENS, 4)
    model = load_tiny(folder, **FP8)
    assert {shape.dtype for shape in model.kv_cache_shapes()} == {torch.uint8}
    found = PagedRunner(model).run_chunked(0, TOKENS, 4)
    error = float((found - plain).norm() / plain.norm())
    assert 1e-4 < error < 0.15  # 2 to 3 % in each number, which random weights magnify


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale")])
def test_scales_of_the_checkpoint_are_used(names, tmp_path):
    folder = checkpoint(tmp_path / "scaled", dict(zip(names, (0.25, 0.5), strict=True)))
    model = load_tiny(folder, **FP8)
    assert {layer.self_attn.kv_scales for layer in model.decoder_layers()} == {(0.25, 0.5)}
    found = PagedRunner(model).run_chunked(0, TOKENS, 4)
    plain = PagedRunner(load_tiny(tiny_checkpoint("qwen3", head_dim=16))).run_chunked(0, TOKENS, 4)
    assert float((found - plain).norm() / plain.norm()) < 0.15
    assert {layer.self_attn.kv_scales for layer in load_tiny(folder, **{**FP8, "kv_dtype": None}).decoder_layers()} == {
        (1, 1)
    }


def test_a_scale_that_is_none_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"layers\.0\.self_attn\.k_scale.*positive"):
        load_tiny(checkpoint(tmp_path / "scaled", {"k_scale": 0.0}), **FP8)


def test_numbers_that_are_too_large_become_the_largest():
    cache = torch.zeros(2, 4, 1, 2, dtype=torch.uint8).view(torch.float8_e4m3fn)
    write_cache(cache, torch.tensor([[[1000.0, -3e4]], [[0.5, 3.0]]]), 2.0, torch.tensor([5, 2]))
    read = read_cache(cache, torch.tensor([1, 0]), 2.0, torch.float32)
    assert read[0, 1].tolist() == [[896.0, -896.0]]
    assert read[1, 2].tolist() == [[0.5, 3.0]]


def test_models_without_such_a_cache_say_so():
    with pytest.raises(UnsupportedModel, match="fp8 is not served by the transformers"):
        with_kv_dtype(ModelChoice("transformers", lambda args, dtype: None), torch.float8_e4m3fn)
