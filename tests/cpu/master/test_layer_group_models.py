"""Models of which some layers slide and others see everything: transformers' tokens, from groups of layers with their own blocks."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig
from xllm_framework.kv_cache import LayerGroup
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.auto_config import cache_groups

WINDOW = 20
NUM_TOKENS = 30
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
MODELS = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": WINDOW, "num_hidden_layers": 4},
    "qwen3": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "head_dim": 16,
    },
}
OPTIONS = [
    {},
    {"enable_prefix_cache": False},
    {"enable_schedule_overlap": True},
    {"max_prefill_chunk": 7},
    {"dp_size": 2},
    {"num_blocks": 100, "host_blocks_factor": 4.0},
    {"num_blocks": 100, "host_blocks_factor": 4.0, "enable_schedule_overlap": True},
]


def folder_of(model_type: str) -> str:
    return str(tiny_checkpoint(model_type, **MODELS[model_type]))


def prompts() -> list[list[int]]:
    chance = random.Random(4)
    shared = [chance.randrange(256) for _ in range(50)]
    return [shared[: 25 * (number % 3)] + [chance.randrange(256) for _ in range(5 + 9 * number)] for number in range(5)]


@functools.cache
def reference(model_type: str) -> list[list[int]]:
    """Return greedy tokens by transformers, each computed from the whole text."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder_of(model_type), dtype=torch.float32).eval()
    answers = []
    for prompt in prompts():
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def served(model_type: str, **options) -> LLM:
    flat = {"device": "cpu", "dtype": "float32", "threads": 1, "block_size": 4, "model_impl": "python"}
    return LLM(folder_of(model_type), check_integrity=True, **{**flat, "num_blocks": 400, **options})


def test_layers_are_grouped_by_window_unless_it_lets_nothing_go() -> None:
    args = load_model_args(resolve_model(folder_of("qwen2"), LoadConfig()))
    assert cache_groups(args, 256) == (LayerGroup((2, 3), WINDOW), LayerGroup((0, 1)))
    assert cache_groups(args, WINDOW) == (LayerGroup((0, 1, 2, 3)),)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_answers_are_those_of_transformers(model_type: str, options: dict) -> None:
    with served(model_type, **options) as llm:
        wanted = reference(model_type)
        for _ in range(2):
            outputs = llm.generate(prompts(), GREEDY, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == wanted
        stats = llm.master.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    if options.get("enable_prefix_cache", True):
        assert stats.prefix_cache_hits > 100


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_beams_search_what_one_group_of_layers_finds(is_overlapped: bool) -> None:
    beams = SamplingParams(temperature=0.0, max_tokens=24, beam_width=3, n=3, ignore_eos=True)
    answers = []
    for impl in ("python", "native"):
        with served("qwen2", model_impl=impl, enable_schedule_overlap=is_overlapped) as llm:
            outputs = llm.generate(prompts()[1:3], beams, use_tqdm=False)
            answers.append([[answer.token_ids for answer in output.outputs] for output in outputs])
    assert answers[0] == answers[1]


def test_a_text_takes_fewer_blocks_than_its_layers_would_together() -> None:
    """46 blocks of half the layers each would hold 92 tokens; here one group holds 30 blocks for 120, the other its window."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    long = (prompts()[4] * 4)[:100]
    with served("qwen2", num_blocks=47, max_prefill_chunk=4, enable_prefix_cache=False) as llm:
        assert llm.master.ready.max_model_len == 4 * (46 - 8)
        tight = llm.generate(long, params, use_tqdm=False)[0].outputs[0].token_ids
    with served("qwen2", model_impl="native") as llm:
        assert llm.generate(long, params, use_tqdm=False)[0].outputs[0].token_ids == tight


def test_blocks_of_both_groups_come_back_from_files_at_the_next_start(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("xllm_scheduler.scheduler.Scheduler.prefill_s", lambda self, tokens, before: 1.0 * tokens)
    options = {"archive_path": str(tmp_path), "max_archive_size": 2**24}
    prompt = (prompts()[4] * 4)[:120]
    with served("qwen2", **options) as llm:
        first = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        llm.generate(prompts()[0], GREEDY, use_tqdm=False)  # what a sequence gives up goes with the next step
    with served("qwen2", **options) as llm:
        again = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        assert llm.master.stats.prefix_cache_hits >= 80
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
