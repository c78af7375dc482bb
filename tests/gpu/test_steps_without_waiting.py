"""Steps are started without waiting for the device: no synchronising call and no copy from pageable memory, whatever requests ask for."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.constraint import Constraint
from xllm_runtime import LLM, SamplingParams
from xllm_runtime.worker.llm import LLMWorker

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]
FUSED = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
ASKED = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    "log-probabilities": {"temperature": 0.7, "seed": 3, "logprobs": 4},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "biased": {"temperature": 0.9, "seed": 4, "logit_bias": {7: 2.0, 9: -100.0}},
    "held back": {"temperature": 0.0, "min_tokens": 6, "stop_token_ids": [3, 4]},
    "constrained": {"temperature": 0.0, "constraint": Constraint("regex", "[a-z ]{1,40}")},
}
PROMPTS = [[(7 * row + column) % 250 for column in range(3 + 31 * row % 90)] for row in range(14)]
"""More than run at once, so that prompts come in while others decode, some of them in chunks."""


def requests() -> list[SamplingParams]:
    asked = list(ASKED.values())
    return [
        SamplingParams(max_tokens=5 + 3 * index % 11, ignore_eos=True, **asked[index % len(asked)])
        for index in range(len(PROMPTS))
    ]


@pytest.fixture
def watched(monkeypatch):
    """Errors of steps that were started while every synchronising call is one; empty `is_on` lets them be."""
    errors, is_on = [], []
    begin = LLMWorker.begin

    def watched_begin(self, *args):
        if is_on:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return begin(self, *args)
        except RuntimeError as error:
            errors.append(error)
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(LLMWorker, "begin", watched_begin)
    return errors, is_on


def test_steps_wait_for_nothing(watched):
    errors, is_on = watched
    folder = tiny_checkpoint("qwen3", **FUSED)
    options = {"device": "cuda", "dtype": "bfloat16", "num_blocks": 200, "max_num_seqs": 8}
    options |= {"max_num_batched_tokens": 64, "enable_schedule_overlap": True, "enable_prefix_cache": False}
    with LLM(str(folder), **options) as llm:
        llm.generate(PROMPTS, requests(), use_tqdm=False)  # sizes are met, and captured
        is_on.append(True)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            found = llm.generate(PROMPTS, requests(), use_tqdm=False)
    assert errors == []
    assert [output.error for output in found] == [None] * len(PROMPTS)
    copies = {event.name for event in profiler.events() if "Memcpy" in event.name}
    assert copies
    assert [name for name in copies if "Pageable" in name] == []


@pytest.mark.parametrize("name", ASKED)
def test_answers_are_those_of_steps_one_at_a_time(name):
    """The other way samples in the order in which all is known: nothing is left to the device."""
    folder = tiny_checkpoint("qwen3", **FUSED)
    params = SamplingParams(max_tokens=12, ignore_eos=True, **ASKED[name])
    options = {"device": "cuda", "dtype": "bfloat16", "num_blocks": 200, "max_num_batched_tokens": 64}
    answers = []
    for is_overlapped in (False, True):
        with LLM(str(folder), enable_schedule_overlap=is_overlapped, **options) as llm:
            outputs = llm.generate(PROMPTS[:5], params, use_tqdm=False)
        answers.append([(output.error, list(output.outputs[0].token_ids)) for output in outputs])
    assert answers[0] == answers[1]
    assert all(error is None for error, _ in answers[0])
