"""Every answer is the same with each feature on and off: greedy, seeded, penalised, best of several, beams, with end tokens.

One engine an implementation serves all cases; each case has a block manager and a scheduler of its own over the engine's pool.
Compared is what the engine side says, so that stop strings, which the front side finds, come as aborts of single sequences;
`test_feature_matrix_offline` has them whole.
"""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from support.engine_side import EngineSide
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_framework.request.messages import Pause, Resume
from xllm_runtime.engine.llm import LLMEngine
from xllm_scheduler.latency import LatencyModel, save_latency_model
from xllm_scheduler.strategies import STRATEGIES

IMPLEMENTATIONS = ["python", "native"]
ROOMY, TIGHT = 150, 16
SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, seed=4, max_tokens=18, n=3),
    SamplingParams(temperature=0.0, max_tokens=20, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, seed=6, max_tokens=15, n=1, best_of=3),
    SamplingParams(temperature=0.0, max_tokens=12, beam_width=4, n=2),
    SamplingParams(temperature=1.0, seed=7, max_tokens=20, min_tokens=6, stop_token_ids=tuple(range(0, 256, 3))),
    SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=1),
]
FEATURES: dict[str, dict] = {
    "prefix cache off": {"enable_prefix_cache": False},
    "chunked prefill off": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    "chunks of 17": {"max_prefill_chunk": 17},
    "leftovers shared": {"max_prefill_chunk": 5, "share_leftover_tokens": True},
    "no sharing within a step": {"enable_in_batch_prefix": False},
    "no second look": {"chunked_match_frequency": 0},
    "overlap": {"enable_schedule_overlap": True},
    "overlap, few blocks": {"enable_schedule_overlap": True, "num_blocks": TIGHT},
    "few blocks": {"num_blocks": TIGHT},
    "few blocks, no prefix cache": {"num_blocks": TIGHT, "enable_prefix_cache": False},
    "few sequences": {"max_num_seqs": 4},
    "zero-evict": {"enable_zero_evict": True, "num_blocks": 2 * TIGHT},
    "host tier, few blocks": {"num_host_blocks": 40, "num_blocks": TIGHT},
    "host tier, overlap, few blocks": {"num_host_blocks": 9, "num_blocks": TIGHT, "enable_schedule_overlap": True},
    "short steps": {"prefill_step_ms": 5.0},
}
for _policy in ("decode_first", "prefill_first", "unified"):
    for _strategy in STRATEGIES:
        FEATURES[f"{_policy}, {_strategy}"] = {"policy": _policy, "priority_strategy": _strategy}


@functools.cache
def engine(model_impl: str) -> LLMEngine:
    folder = str(tiny_checkpoint("llama"))
    archive = tempfile.mkdtemp(prefix="xllm-archive-")
    flat = {"model": folder, "model_impl": model_impl, "device": "cpu", "dtype": "float32", "num_blocks": 200}
    flat |= {"threads": 1, "enable_schedule_overlap": True, "host_blocks_factor": 0.5, "archive_path": archive}
    files = resolve_model(folder, LoadConfig())
    return LLMEngine(XLLMConfig.from_flat(flat), files, load_model_args(files))


@pytest.fixture(scope="module", autouse=True)
def engines_closed():
    yield
    for model_impl in IMPLEMENTATIONS:
        engine(model_impl).close()
    engine.cache_clear()
    plain.cache_clear()
    for folder in Path(tempfile.gettempdir()).glob("xllm-archive-*"):
        shutil.rmtree(folder, ignore_errors=True)


def requests() -> list[tuple[str, list[int], SamplingParams]]:
    chance = random.Random(2)
    shared = [chance.randrange(256) for _ in range(33)]
    prompts = [
        shared[: chance.choice([0, 16, 33])] + [chance.randrange(256) for _ in range(1 + 7 * i)] for i in range(7)
    ]
    return [(f"r{index}", prompt, SAMPLINGS[index]) for index, prompt in enumerate(prompts)]


def new_side(model_impl: str, **options) -> EngineSide:
    served = engine(model_impl)
    options = {"num_blocks": ROOMY, "max_num_batched_tokens": 48, "max_model_len": 128} | options
    side = EngineSide(served, can_copy_blocks=served.can_copy_blocks, **options)
    for request in requests():
        side.add(*request)
    return side


def answers(model_impl: str, **options) -> EngineSide:
    side = new_side(model_impl, **options)
    side.finish()
    assert side.holds_nothing
    return side


@functools.cache
def plain(model_impl: str) -> EngineSide:
    return answers(model_impl)


def assert_same(side: EngineSide, model_impl: str) -> None:
    wanted = plain(model_impl)
    assert side.tokens == wanted.tokens
    assert side.reasons == wanted.reasons
    assert [entry and entry.token_id for entry in side.prompt_logprobs["r6", 0]] == [
        entry and entry.token_id for entry in wanted.prompt_logprobs["r6", 0]
    ]


@pytest.mark.parametrize("model_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("feature", FEATURES)
def test_answers_do_not_depend_on(feature: str, model_impl: str) -> None:
    side = answers(model_impl, **FEATURES[feature])
    assert_same(side, model_impl)
    if FEATURES[feature].get("num_blocks") == TIGHT and "enable_prefix_cache" not in FEATURES[feature]:
        assert side.stats.num_preemptions > 0


@pytest.mark.parametrize("model_impl", IMPLEMENTATIONS)
def test_steps_limited_by_time_change_nothing(model_impl: str, tmp_path: Path) -> None:
    model = LatencyModel(constant_us=500.0, per_token_us=200.0)
    save_latency_model(model, tmp_path / "latency.json")
    for policy in ("decode_first", "prefill_first", "unified"):
        options = {"policy": policy, "latency_model": str(tmp_path / "latency.json"), "default_tpot_slo_ms": 8.0}
        assert_same(answers(model_impl, default_ttft_slo_ms=10.0, **options), model_impl)


@pytest.mark.parametrize("model_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("num_host_blocks", [0, 9])
def test_blocks_from_files_change_nothing(model_impl: str, is_overlapped: bool, num_host_blocks: int) -> None:
    options = {"num_blocks": TIGHT, "num_host_blocks": num_host_blocks, "enable_schedule_overlap": is_overlapped}
    hits = []
    for _ in range(3):
        side = answers(model_impl, archive=engine(model_impl).archive, **options)
        assert_same(side, model_impl)
        hits.append(side.stats.prefix_cache_hits)
    assert hits[-1] > plain(model_impl).stats.prefix_cache_hits


@pytest.mark.parametrize("model_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", ["keep", "wait"])
@pytest.mark.parametrize("feature", ["few blocks", "overlap", "overlap, few blocks", "host tier, few blocks"])
def test_pauses_change_nothing(model_impl: str, mode: str, feature: str) -> None:
    side = new_side(model_impl, **FEATURES[feature])
    for number in range(400):
        if not side.loop.has_work:
            break
        side.step()
        if number % 9 == 4:
            side.loop.apply(Pause(mode))
            for _ in range(2):
                side.step()
            side.loop.apply(Resume())
    side.finish()
    assert_same(side, model_impl)
    assert side.holds_nothing


@pytest.mark.parametrize("model_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("feature", ["few blocks", "overlap", "overlap, few blocks", "host tier, overlap, few blocks"])
def test_aborts_leave_beginnings_and_do_not_touch_others(model_impl: str, feature: str) -> None:
    wanted = plain(model_impl)
    chance = random.Random(feature)
    for _ in range(3):
        side = new_side(model_impl, **FEATURES[feature])
        while side.loop.has_work:
            side.step()
            if chance.random() < 0.1:
                side.abort((f"r{chance.randrange(7)}", chance.randrange(3)))
        for key, reason in side.reasons.items():
            got = side.tokens[key]
            assert got == (wanted.tokens[key][: len(got)] if reason == "abort" else wanted.tokens[key])
        assert side.holds_nothing
