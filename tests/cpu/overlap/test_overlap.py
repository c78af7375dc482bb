"""Answers with one step of lead equal those without, whatever else is on; failures stay with whoever caused them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import pytest
from xllm_script_model import NAN, RAISE, script, write_checkpoint

from support.engine_side import EngineSide
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.engine.llm import LLMEngine

POOLS = {"roomy": 150, "tight": 14}
SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=20, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, top_p=0.9, seed=4, max_tokens=20, n=3),
    SamplingParams(temperature=1.0, seed=5, max_tokens=20, presence_penalty=1.5, logprobs=2, n=2),
    SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1),
    SamplingParams(temperature=1.0, seed=7, max_tokens=20, min_tokens=6, stop_token_ids=tuple(range(0, 256, 3))),
]


@functools.cache
def engine() -> LLMEngine:
    folder = str(tiny_checkpoint("llama"))
    flat = {"model": folder, "device": "cpu", "dtype": "float32", "num_blocks": 200, "threads": 1}
    files = resolve_model(folder, LoadConfig())
    config = XLLMConfig.from_flat({**flat, "enable_schedule_overlap": True})
    return LLMEngine(config, files, load_model_args(files))


@pytest.fixture(scope="module", autouse=True)
def end_of_engine() -> Iterator[None]:
    """End the engine's thread, which would hold the decoder while the interpreter ends."""
    yield
    if engine.cache_info().currsize:
        engine().close()
        engine.cache_clear()


def requests() -> list[tuple[str, list[int], SamplingParams]]:
    chance = random.Random(2)
    shared = [chance.randrange(256) for _ in range(33)]
    prompts = [
        shared[: chance.choice([0, 16, 33])] + [chance.randrange(256) for _ in range(1 + 7 * i)] for i in range(7)
    ]
    return [(f"r{index}", prompt, SAMPLINGS[index]) for index, prompt in enumerate(prompts)]


def answers(*, is_overlapped: bool, pool: str = "roomy", max_model_len: int = 128, **options) -> EngineSide:
    side = EngineSide(
        engine(),
        POOLS[pool],
        max_model_len=max_model_len,
        enable_schedule_overlap=is_overlapped,
        max_num_batched_tokens=48,
        **options,
    )
    for request in requests():
        side.add(*request)
    side.finish()
    assert side.holds_nothing
    return side


def assert_alike(left, right) -> None:
    """Compare log-probabilities: the batch around a row may change their last bits."""
    assert left.keys() == right.keys()
    for key, entries in left.items():
        for one, other in zip(entries, right[key], strict=True):
            assert (one and one.token_id) == (other and other.token_id)
            assert (one and one.logprob) == pytest.approx(other and other.logprob, abs=1e-4)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
@pytest.mark.parametrize("enable_prefix_cache", [False, True])
def test_answers_are_equal_with_and_without(pool: str, policy: str, enable_prefix_cache: bool):
    options = {"pool": pool, "policy": policy, "enable_prefix_cache": enable_prefix_cache}
    in_turn = answers(is_overlapped=False, **options)
    overlapped = answers(is_overlapped=True, **options)
    assert overlapped.tokens == in_turn.tokens
    assert overlapped.reasons == in_turn.reasons
    assert_alike(overlapped.logprobs, in_turn.logprobs)
    assert set(overlapped.prompt_logprobs) == {("r4", 0), ("r5", 0)}
    assert_alike(overlapped.prompt_logprobs, in_turn.prompt_logprobs)
    assert (overlapped.stats.num_preemptions > 0) == (pool == "tight")


def test_the_context_ends_an_answer_at_the_same_token():
    in_turn = answers(is_overlapped=False, max_model_len=51)
    overlapped = answers(is_overlapped=True, max_model_len=51)
    assert "length" in in_turn.reasons.values()
    assert (overlapped.tokens, overlapped.reasons) == (in_turn.tokens, in_turn.reasons)


def test_random_aborts_leave_prefixes_of_the_answers():
    whole = answers(is_overlapped=False)
    chance = random.Random(3)
    for _ in range(6):
        side = EngineSide(engine(), 14, max_model_len=128, enable_schedule_overlap=True, max_num_batched_tokens=48)
        for request in requests():
            side.add(*request)
        while side.loop.has_work:
            side.step()
            if chance.random() < 0.2:
                side.abort((f"r{chance.randrange(7)}", chance.randrange(2)))
        for key, reason in side.reasons.items():
            if reason == "abort":
                assert side.tokens[key] == whole.tokens[key][: len(side.tokens[key])]
            else:
                assert side.tokens[key] == whole.tokens[key]
        assert side.holds_nothing


@pytest.fixture(scope="module", params=[False, True], ids=["in_turn", "overlapped"])
def llm(tmp_path_factory, request):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("script") / "script-model")
    options = {"device": "cpu", "num_blocks": 40, "threads": 1, "check_integrity": True}
    with LLM(str(checkpoint), enable_schedule_overlap=request.param, **options) as llm:
        yield llm


def test_stop_strings_failures_and_copies_through_the_whole_path(llm):
    prompts = [script(*"abcdefgh"), script("a", RAISE), script("b", NAN), script(*"xyz"), script(*"stop here")]
    params = [SamplingParams(temperature=0.0, stop=("fg",)), *[SamplingParams(temperature=0.0, n=2)] * 4]
    for _ in range(3):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].text for output in outputs] == ["abcde", "a", "b", "xyz", "stop here"]
        assert [output.error_kind for output in outputs] == [None, "request_failed", "request_failed", None, None]
        assert "ScriptedFailure" in outputs[1].error
        assert [output.text for output in outputs[3].outputs] == ["xyz", "xyz"]
        assert outputs[0].outputs[0].stop_reason == "fg"
