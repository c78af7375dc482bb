"""What is shared between requests with pictures, and what must not be; what comes back when they end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.masters import Collector
from support.tiny_vision import picture
from support.video_clips import clip
from support.vision_cases import reference
from xllm_framework.config import XLLMConfig
from xllm_framework.request import FinishReason, SamplingParams
from xllm_framework.request.messages import EngineStats
from xllm_runtime.llm import LLM
from xllm_runtime.master import ChatInput
from xllm_runtime.master.vlm import VLMMaster
from xllm_runtime.worker import native_vlm
from xllm_runtime.worker.media_encoder import MediaEncoder

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "check_integrity": True, "threads": 1}


def conversation(*parts: Any, text: str = "What do you see in these pictures?") -> list[dict[str, Any]]:
    images = [{"type": "image", "image": part} for part in parts]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(str(reference("qwen3_vl").folder), **OPTIONS) as served:
        yield served


def tokens(llm: LLM, messages: list[dict[str, Any]], params: SamplingParams = GREEDY) -> list[int]:
    output = llm.chat(messages, params)[0]
    assert output.error is None
    return output.outputs[0].token_ids


def stats(llm: LLM) -> EngineStats:
    return llm.master.stats


def test_the_same_picture_is_neither_encoded_nor_computed_again(llm: LLM) -> None:
    first = tokens(llm, conversation(picture(1)))
    before = stats(llm)
    assert (before.num_encoded_media, before.prefix_cache_hits) == (1, 0)
    assert tokens(llm, conversation(picture(1))) == first
    after = stats(llm)
    assert after.num_encoded_media == 1
    assert after.prefix_cache_hits >= 16


def test_a_picture_in_another_prompt_is_found_in_the_encoder_cache(llm: LLM) -> None:
    tokens(llm, conversation(picture(1), text="One question about it, which is long enough for a block."))
    tokens(llm, conversation(picture(2), picture(1), text="Another."))
    assert stats(llm).num_encoded_media == 2
    assert stats(llm).num_cached_media == 1


def test_the_same_text_with_another_picture_shares_nothing_behind_it(llm: LLM) -> None:
    with LLM(str(reference("qwen3_vl").folder), enable_prefix_cache=False, **OPTIONS) as plain:
        expected = [tokens(plain, conversation(picture(seed))) for seed in (1, 2)]
    assert [tokens(llm, conversation(picture(seed))) for seed in (1, 2)] == expected
    assert stats(llm).num_encoded_media == 2
    assert stats(llm).prefix_cache_hits < 16


def test_a_prompt_cut_inside_a_picture_meets_the_cache_of_a_longer_one(llm: LLM) -> None:
    large = picture(3, 250, 250)
    first = tokens(llm, conversation(large, text="a"))
    assert tokens(llm, conversation(large, text="b")) != []
    assert tokens(llm, conversation(large, text="a")) == first
    assert stats(llm).num_encoded_media == 1


def test_several_sequences_of_a_prompt_and_beams_see_the_picture(llm: LLM) -> None:
    messages = conversation(picture(4))
    output = llm.chat(messages, SamplingParams(n=3, temperature=0, max_tokens=6, ignore_eos=True))[0]
    answers = [sequence.token_ids for sequence in output.outputs]
    assert answers == [tokens(llm, messages, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))] * 3
    params = SamplingParams(n=2, temperature=0.8, seed=5, max_tokens=6, ignore_eos=True)
    first, second = (llm.chat(messages, params)[0] for _ in range(2))
    assert [s.token_ids for s in first.outputs] == [s.token_ids for s in second.outputs]
    beams = llm.chat(messages, SamplingParams(n=2, beam_width=2, temperature=0, max_tokens=4))[0]
    assert beams.error is None
    assert len(beams.outputs) == 2


def test_the_encoder_budget_spreads_pictures_over_steps() -> None:
    with LLM(str(reference("qwen3_vl").folder), max_encoder_tokens=8, **OPTIONS) as limited:
        found = tokens(limited, conversation(*(picture(seed) for seed in range(1, 6))))
        num_steps = stats(limited).num_steps
    with LLM(str(reference("qwen3_vl").folder), **OPTIONS) as free:
        assert tokens(free, conversation(*(picture(seed) for seed in range(1, 6)))) == found
        assert stats(free).num_steps == 4
    assert num_steps == 8


class WatchedEncoder(MediaEncoder):
    """A `MediaEncoder` that the test finds again."""

    latest: WatchedEncoder

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        WatchedEncoder.latest = self


@pytest.mark.parametrize("overlap", [False, True])
def test_everything_comes_back_after_a_hundred_requests_with_aborts(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_vlm, "MediaEncoder", WatchedEncoder)
    generator = random.Random(3)
    video = {"type": "video", "video": clip(6, 4, 60, 44)}
    config = XLLMConfig.from_flat(
        {
            "model": str(reference("qwen2_5_vl").folder),
            "num_blocks": 60,
            "max_num_batched_tokens": 40,
            "max_num_seqs": 8,
            "max_encoder_cache_size": 30_000,
            "enable_schedule_overlap": overlap,
            **OPTIONS,
        }
    )
    master = VLMMaster.create(config, engine_process=False)
    try:
        started = []
        for index in range(100):
            pictures = [
                picture(generator.randrange(6), *generator.choices((30, 60, 90), k=2)) for _ in range(index % 3)
            ]
            messages = conversation(*pictures, text="x" * generator.randint(1, 80))
            if index % 7 == 0:
                messages[0]["content"].append(video)
            params = SamplingParams(temperature=0, max_tokens=generator.randint(1, 12), n=1 + index % 2)
            prepared, collector = master.prepare_chat(ChatInput(messages=messages), params), Collector()
            if pictures and index % 5 == 0:
                prepared = master.prepare_media_embedding(messages)
            master.submit(prepared, collector)
            started.append((prepared.request_id, collector))
            if generator.random() < 0.4:
                master.cancel(generator.choice(started)[0])
        reasons = [sequence.finish_reason for _, collector in started for sequence in collector.result().outputs]
        assert {FinishReason.LENGTH, FinishReason.ABORT} <= set(reasons)
        assert FinishReason.ERROR not in reasons
        deadline = time.monotonic() + 10
        while (end := master.stats).num_running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (end.num_running, end.num_waiting) == (0, 0)
        assert end.num_free_blocks + end.num_cached_blocks == end.num_blocks
        encoder = WatchedEncoder.latest
        assert end.num_encoded_media == encoder.num_encoded > 0
        kept = encoder._kept.values()
        assert encoder.num_kept_bytes == sum(embeddings.nbytes for embeddings in kept) <= 30_000
        assert len(kept) > 1
        assert master.health() is None
    finally:
        master.close()
