"""The fallback against transformers itself, for models that can be paged and for models that cannot."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.loaded_models import load_tiny, model_files
from support.paged_runner import PagedRunner
from support.reference_logits import reference_decode_logits, reference_logits
from support.tiny_checkpoints import MAMBA_SHAPE, NUM_BYTE_TOKENS, tiny_checkpoint
from xllm_framework.config import ModelConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs, load_model_args
from xllm_runtime.models import select_model
from xllm_runtime.models.transformers_paged import PagedForward
from xllm_runtime.models.transformers_recompute import RecomputeForward
from xllm_runtime.weights import load_weights
from xllm_runtime.weights.dummy import fill_dummy_weights

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 32,
    "factor": 8.0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
MODELS = {
    "gpt2": ("gpt2", {}, PagedForward),
    "llama": ("llama", {}, PagedForward),
    "phi3": ("phi3", {"sliding_window": 7}, PagedForward),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8}, PagedForward),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 8}, PagedForward),
    "granite": ("granite", {"logits_scaling": 4.0}, PagedForward),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 64}, PagedForward),
    "falcon": ("falcon", {}, RecomputeForward),
    "bloom": ("bloom", {"n_head": 4}, RecomputeForward),
    "mamba": ("mamba", {}, RecomputeForward),
}


def tokens_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, NUM_BYTE_TOKENS, (count,), generator=generator).tolist()


def args_of(folder) -> ModelArgs:
    if not folder.name.startswith("mamba"):
        return load_model_args(model_files(folder))
    return ModelArgs(
        architecture="MambaForCausalLM",
        model_type="mamba",
        vocab_size=MAMBA_SHAPE["vocab_size"],
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        raw=MAMBA_SHAPE,
    )


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name):
    model_type, overrides, strategy = MODELS[name]
    folder = tiny_checkpoint(model_type, **overrides)
    model = load_tiny(folder, "transformers", args_of(folder))
    assert isinstance(model._strategy, strategy)
    runner = PagedRunner(model)
    first, second = tokens_of(1, 29), tokens_of(2, 18)
    expected, expected_second = reference_logits(folder, first), reference_logits(folder, second)
    for sequence, chunk in enumerate((29, 1, 16)):
        torch.testing.assert_close(runner.run_chunked(sequence, first, chunk), expected, atol=1e-4, rtol=0)
    rows = [
        runner.step([(10, first[:20])]),
        runner.step([(11, second[:17]), (10, first[20:28])]),
        runner.step([(10, first[28:]), (11, second[17:])]),
    ]
    torch.testing.assert_close(torch.cat([rows[0][0], rows[1][1], rows[2][0]]), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([rows[1][0], rows[2][1]]), expected_second, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("model_type", "rope"), [("phi3", LONGROPE), ("llama", DYNAMIC)])
def test_neighbours_and_chunks_change_no_frequencies(model_type, rope):
    """Kinds of rope that look at the longest sequence of a batch must look at each position alone."""
    folder = tiny_checkpoint(model_type, rope_parameters=rope, max_position_embeddings=64)
    runner = PagedRunner(load_tiny(folder, "transformers"))
    long, short = tokens_of(3, 100), tokens_of(4, 20)
    expected = reference_decode_logits(folder, long, 1)
    logits = runner.step([(0, long), (1, short)])
    torch.testing.assert_close(logits[1], reference_logits(folder, short), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=0)
    for sequence, chunk in ((2, 1), (3, 17)):
        torch.testing.assert_close(runner.run_chunked(sequence, long, chunk), expected, atol=1e-4, rtol=0)


def test_half_types_pass_the_trial():
    folder = tiny_checkpoint("gpt2")
    args = load_model_args(model_files(folder))
    for dtype in (torch.bfloat16, torch.float16):
        model = select_model(args, ModelConfig(model_impl="transformers")).build(args, dtype)
        model.load_weights(load_weights(model_files(folder), args, dtype))
        assert isinstance(model._strategy, PagedForward)
        assert {shape.dtype for shape in model.kv_cache_shapes()} == {dtype}


def test_dummy_weights_can_be_served():
    folder = tiny_checkpoint("gpt2")
    args = load_model_args(model_files(folder))
    logits = []
    for _ in range(2):
        model = select_model(args, ModelConfig()).build(args, torch.float32)
        fill_dummy_weights(model)
        logits.append(PagedRunner(model).step([(0, tokens_of(1, 5))])[0])
    assert torch.equal(*logits)
    assert logits[0].isfinite().all()


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path):
    folder = tmp_path / "gpt2"
    shutil.copytree(tiny_checkpoint("gpt2"), folder)
    tensors = load_file(folder / "model.safetensors")
    dropped = tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"h\.1\.mlp\.c_fc\.weight"):
        load_tiny(folder, "transformers")
    tensors["transformer.h.1.mlp.c_fc.weight"] = dropped[:, :5].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match="transformers cannot load the checkpoint"):
        load_tiny(folder, "transformers")
