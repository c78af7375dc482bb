"""The offline API on the GPU: whole requests through scheduler, engine and graphs, against the CPU."""

from __future__ import annotations

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_runtime import LLM, SamplingParams

pytestmark = pytest.mark.gpu
PROMPTS = [[7, 3, 200, 41], list(range(60)), [5] * 33, [250, 9], list(range(100, 130))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
FUSED = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def answers(folder, params=GREEDY, **options):
    options = {"num_blocks": 200, "max_num_batched_tokens": 64, **options}
    with LLM(str(folder), **options) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_float32_gives_the_tokens_of_the_cpu(model_type):
    folder = tiny_checkpoint(model_type)
    expected = answers(folder, device="cpu", dtype="float32", model_impl="python")
    assert answers(folder, device="cuda", dtype="float32") == expected


NEAR_TIE = 0.1
"""Between two log-probabilities of a small model in bfloat16: sums of other lengths round otherwise."""


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_tokens_do_not_depend_on_chunks_or_the_prefix_cache(model_type):
    """Where a text parts from that of the whole prompt, the token that it takes was all but as probable there."""
    folder = tiny_checkpoint(model_type, **FUSED)
    options = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 8, "num_blocks": 200}
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=4)
    with LLM(str(folder), max_num_batched_tokens=512, enable_prefix_cache=False, **options) as llm:
        whole = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    with LLM(str(folder), max_num_batched_tokens=64, **options) as llm:
        chunked = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    for a, b in zip(whole, chunked, strict=True):
        for here, other in zip(a.logprobs, b.token_ids, strict=True):
            if here.token_id != other:
                assert here.logprob - dict(here.top)[other] < NEAR_TIE
                break


DRAWN = SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=16, ignore_eos=True)
PENALISED = SamplingParams(
    temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, max_tokens=16, ignore_eos=True
)


@pytest.mark.parametrize("params", [GREEDY, DRAWN, PENALISED], ids=["greedy", "drawn", "penalised"])
def test_draws_repeat_and_do_not_depend_on_overlap(params):
    folder = tiny_checkpoint("qwen3", **FUSED)
    options = {"device": "cuda", "dtype": "bfloat16"}
    plain = answers(folder, params, **options)
    assert answers(folder, params, **options) == plain
    assert answers(folder, params, enable_schedule_overlap=True, **options) == plain


def test_experts_give_the_tokens_of_the_cpu_in_float32():
    folder = tiny_checkpoint(
        "qwen3_moe", num_experts=32, num_experts_per_tok=4, moe_intermediate_size=64, head_dim=64, norm_topk_prob=True
    )
    expected = answers(folder, device="cpu", dtype="float32", model_impl="python")
    assert answers(folder, device="cuda", dtype="float32") == expected
