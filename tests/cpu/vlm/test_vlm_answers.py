"""Answers about pictures equal transformers', whatever rides on the steps."""

from __future__ import annotations

from typing import Any

import pytest

from support.vision_cases import CASES, NUM_TOKENS, answer, check_logprobs, check_positions, reference
from xllm_framework.request import RequestOutput, SamplingParams
from xllm_runtime.llm import LLM
from xllm_runtime.master import ChatInput

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava_onevision", "glm4v", "glm4v_moe")
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
FEATURES: dict[str, dict[str, Any]] = {
    "prefix cache": {},
    "no prefix cache": {"enable_prefix_cache": False},
    "chunks inside images": {"max_num_batched_tokens": 9},
    "chunks without encoder cache": {"max_num_batched_tokens": 13, "max_encoder_cache_size": 0},
    "overlap": {"enable_schedule_overlap": True, "max_prefill_chunk": 11},
}
ON_TORCH = {"on torch": {"model_impl": "python", "max_num_batched_tokens": 13}}
OF_MODEL = {
    **dict.fromkeys(MODELS, tuple(FEATURES)),
    **dict.fromkeys(("qwen2_5_vl", "qwen3_vl"), (*FEATURES, *ON_TORCH)),
    "glm4v_moe": ("prefix cache", "no prefix cache", "chunks inside images"),
}
"""Features that are tried with a model: all, but where only its decoder is new; and torch, where the native decoder serves else."""


def serve(model_type: str, **options: Any) -> LLM:
    return LLM(
        str(reference(model_type).folder),
        dtype="float32",
        max_model_len=1024,
        check_integrity=True,
        threads=1,
        **options,
    )


def ask(llm: LLM, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    return llm.chat([case.messages(with_pictures=True) for case in CASES], params)


@pytest.mark.parametrize(
    ("model_type", "features"),
    [(model_type, features) for model_type in MODELS for features in OF_MODEL[model_type]],
)
def test_all_cases_in_one_batch_have_transformers_tokens(model_type: str, features: str) -> None:
    with serve(model_type, **{**FEATURES, **ON_TORCH}[features]) as llm:
        for repetition in range(2):  # the second finds what the first left in the caches
            for case, output in zip(CASES, ask(llm), strict=True):
                assert output.error is None
                expected = answer(model_type, case).token_ids
                assert output.outputs[0].token_ids == expected, f"{case.name}, repetition {repetition}"


@pytest.mark.parametrize("model_type", MODELS)
def test_positions_and_log_probabilities_are_transformers(model_type: str) -> None:
    whole = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    found_again = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    with serve(model_type, max_num_batched_tokens=48) as llm:  # fewer than five pictures have, more than one
        for case in CASES:
            prepared = llm.master.prepare_chat(ChatInput(messages=case.messages(with_pictures=True)), whole)
            check_positions(prepared, reference(model_type), answer(model_type, case))
        for params in (whole, found_again):
            for case, output in zip(CASES, ask(llm, params), strict=True):
                check_logprobs(output, answer(model_type, case))
