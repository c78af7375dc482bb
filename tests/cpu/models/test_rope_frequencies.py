"""Every kind of rotary scaling against transformers, in a whole model and past the context that it was trained for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from support.loaded_models import load_tiny, model_files
from support.paged_runner import PagedRunner
from support.reference_logits import reference_decode_logits, reference_logits
from support.tiny_checkpoints import NUM_BYTE_TOKENS, tiny_checkpoint
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import RopeScaling, load_model_args
from xllm_runtime.layers.rope_frequencies import cos_sin_table, max_rotary_position, rotary_angles
from xllm_runtime.models.llm.llama import LlamaForCausalLM

HALF = 8
"""Pairs of a head of the tiny models: 64 / 4 / 2."""
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(HALF)], "long_factor": [2.0 + 0.5 * i for i in range(HALF)]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5},
    "yarn-attention-factor": {**YARN, "attention_factor": 1.3},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64, "factor": 4.0, **FACTORS},
    "longrope-attention-factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 64,
        "attention_factor": 1.2,
        **FACTORS,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def scaled_checkpoint(name: str, **overrides):
    parameters = {"rope_theta": 10000.0, **SCALINGS[name]}
    return tiny_checkpoint("llama", rope_parameters=parameters, **overrides)


def tokens_of(count: int) -> list[int]:
    return torch.randint(0, NUM_BYTE_TOKENS, (count,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_are_those_of_transformers(name):
    checkpoint = scaled_checkpoint(name)
    tokens = tokens_of(60)
    runner = PagedRunner(load_tiny(checkpoint))
    expected = reference_logits(checkpoint, tokens)
    for sequence, chunk in enumerate((60, 17)):
        actual = runner.run_chunked(sequence, tokens, chunk)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "context"), [("dynamic", 32), ("longrope", 256), ("yarn", 256)])
def test_decoding_past_the_original_context_follows_transformers(name, context):
    """The kinds that look at the length: a prompt within the original context, then tokens past it, one by one."""
    checkpoint = scaled_checkpoint(name, max_position_embeddings=context)
    tokens = tokens_of(90 if name != "dynamic" else 60)
    num_prompt_tokens = 30
    expected = reference_decode_logits(checkpoint, tokens, num_prompt_tokens)
    runner = PagedRunner(load_tiny(checkpoint))
    actual = torch.cat(
        [runner.run_chunked(0, tokens[:num_prompt_tokens], 30), runner.run_chunked(0, tokens[num_prompt_tokens:], 1)]
    )
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SCALINGS)
def test_a_position_has_one_angle_whatever_is_asked_with_it(name):
    args = load_model_args(model_files(scaled_checkpoint(name)))
    together, factor = rotary_angles(args, np.arange(max_rotary_position(args)))
    for position in (0, 1, 63, 64, 200, 255):
        alone, same_factor = rotary_angles(args, np.array([position]))
        assert np.array_equal(alone[0], together[position])
        assert same_factor == factor


@pytest.mark.parametrize("name", SCALINGS)
def test_tables_are_float32_and_go_to_the_models_device(name):
    args = load_model_args(model_files(scaled_checkpoint(name)))
    with torch.device("meta"):
        assert LlamaForCausalLM(args, torch.bfloat16).rotary.cos_sin_cache.device.type == "meta"
    table = cos_sin_table(args, 4)
    assert table.dtype == np.float32
    assert table.shape == (4, 2 * HALF)


def test_unknown_kinds_and_missing_parameters_are_named():
    args = load_model_args(model_files(scaled_checkpoint("linear")))
    for scaling, message in (
        (RopeScaling(kind="spiral"), "'spiral' is not one of default, linear"),
        (RopeScaling(kind="linear"), "'linear' needs the parameter 'factor'"),
        (
            RopeScaling(
                kind="longrope",
                parameters={"short_factor": [1.0], "long_factor": [1.0], "original_max_position_embeddings": 8},
            ),
            "short_factor of rope type longrope has 1 numbers, not 8",
        ),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            rotary_angles(dataclasses.replace(args, rope_scaling=scaling), np.arange(4))
