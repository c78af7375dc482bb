"""A model whose every layer has a sliding window: the tokens of transformers, from a pool that holds little more than the window."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.auto_config import cache_window

WINDOW = 24
NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
OPTIONS = [
    {},
    {"enable_prefix_cache": False},
    {"enable_schedule_overlap": True},
    {"max_prefill_chunk": 7},
    {"dp_size": 2},
]


def prompts() -> list[list[int]]:
    chance = random.Random(4)
    shared = [chance.randrange(256) for _ in range(50)]
    return [shared[: 25 * (number % 3)] + [chance.randrange(256) for _ in range(5 + 9 * number)] for number in range(5)]


@functools.cache
def reference() -> list[list[int]]:
    """Return greedy tokens by transformers, each computed from the whole text."""
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint("mistral", sliding_window=WINDOW)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts():
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def test_only_a_window_in_every_layer_lets_blocks_go() -> None:
    def window_of(model_type: str, **overrides) -> int:
        folder = str(tiny_checkpoint(model_type, **overrides))
        return cache_window(load_model_args(resolve_model(folder, LoadConfig())))

    assert window_of("mistral", sliding_window=WINDOW) == WINDOW
    assert window_of("mistral", sliding_window=None) == 0
    assert window_of("qwen2", sliding_window=WINDOW, use_sliding_window=True, max_window_layers=1) == 0
    assert window_of("llama") == 0


@pytest.mark.parametrize("model_impl", ["python", "native", "transformers"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
def test_answers_are_those_of_transformers(model_impl: str, options: dict) -> None:
    flat = {
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "block_size": 4,
        "num_blocks": 30,
        "model_impl": model_impl,
    }
    folder = str(tiny_checkpoint("mistral", sliding_window=WINDOW))
    with LLM(folder, check_integrity=True, **{**flat, **options}) as llm:
        for prompt, wanted in zip(prompts(), reference(), strict=True):
            if len(prompt) + NUM_TOKENS <= llm.master.ready.max_model_len:
                assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == wanted
        outputs = llm.generate(prompts(), GREEDY, use_tqdm=False)
        stats = llm.master.stats
    assert [output.outputs[0].token_ids for output in outputs] == reference()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
