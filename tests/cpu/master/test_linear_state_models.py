"""Qwen3.5: layers with a state a sequence beside layers with KV; transformers' tokens, also from saved states."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.layers.gated_delta import gated_delta

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
MODEL = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
}
OPTIONS = [
    {},
    {"enable_prefix_cache": False},
    {"enable_schedule_overlap": True},
    {"max_prefill_chunk": 7, "num_state_slots": 7},
    {"dp_size": 2, "enable_schedule_overlap": True},
]


def folder() -> str:
    return str(tiny_checkpoint("qwen3_5_text", **MODEL))


def prompts() -> list[list[int]]:
    chance = random.Random(4)
    shared = [chance.randrange(256) for _ in range(50)]
    return [shared[: 25 * (number % 3)] + [chance.randrange(256) for _ in range(5 + 9 * number)] for number in range(5)]


@functools.cache
def reference() -> list[list[int]]:
    """Return greedy tokens by transformers, each computed from the whole text."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32).eval()
    answers = []
    for prompt in prompts():
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def served(**options) -> LLM:
    flat = {"device": "cpu", "dtype": "float32", "threads": 1, "block_size": 4, "state_stride": 8, "num_blocks": 200}
    return LLM(folder(), check_integrity=True, **{**flat, **options})


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
def test_answers_are_those_of_transformers(options: dict) -> None:
    with served(**options) as llm:
        assert llm.master.ready.model_impl == "python"
        for _ in range(2):
            outputs = llm.generate(prompts(), GREEDY, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == reference()
        stats = llm.master.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    if options.get("enable_prefix_cache", True) and "num_state_slots" not in options:
        assert stats.prefix_cache_hits >= 100


def test_a_conversation_goes_on_from_a_saved_state() -> None:
    with served() as llm:
        first = llm.generate(prompts()[4], GREEDY, use_tqdm=False)[0]
        longer = [*prompts()[4], *first.outputs[0].token_ids, 7, 8, 9]
        again = llm.generate(longer, GREEDY, use_tqdm=False)[0]
    with served(enable_prefix_cache=False) as llm:
        assert llm.generate(longer, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == again.outputs[0].token_ids
    assert again.num_cached_tokens >= len(longer) - 8 - 3 - 4


def test_beams_are_refused_because_states_are_not_forked() -> None:
    with served() as llm:
        output = llm.generate([1, 2, 3], SamplingParams(beam_width=2, max_tokens=4), use_tqdm=False)[0]
    assert output.error_kind == InvalidRequest.kind
    assert "linear state" in output.error


def test_chunks_of_the_delta_rule_are_its_steps_one_by_one() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 150, 2, 8), torch.randn(2, 150, 2, 8)
    value, decay = torch.randn(2, 150, 4, 6), -torch.rand(2, 150, 4)
    beta, state = torch.rand(2, 150, 4), torch.randn(2, 4, 8, 6)
    whole, last = gated_delta(query, key, value, decay, beta, state)
    for token in range(150):
        part = slice(token, token + 1)
        one, state = gated_delta(query[:, part], key[:, part], value[:, part], decay[:, part], beta[:, part], state)
        torch.testing.assert_close(one, whole[:, part], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(state, last, rtol=1e-3, atol=1e-4)
