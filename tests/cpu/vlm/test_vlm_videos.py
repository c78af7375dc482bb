"""Videos: which frames are taken, what becomes of them, and answers about them, as transformers has it."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec
import pytest
import torch

from support.video_clips import clip, clips, reference_video
from support.vision_cases import (
    CASES,
    NUM_TOKENS,
    Answer,
    answer,
    answer_to,
    check_logprobs,
    check_positions,
    reference,
)
from xllm_framework.config import LoadConfig, MultimodalConfig
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_framework.tokenizer import Tokenizer, load_tokenizer
from xllm_runtime.llm import LLM
from xllm_runtime.master import ChatInput
from xllm_runtime.models.vlm.patches import patchify
from xllm_runtime.processors.media_processor import load_media_processor
from xllm_runtime.processors.normalisations import load_normalisations
from xllm_runtime.processors.video_file import VideoFile
from xllm_runtime.worker.media_encoder import MediaEncoder

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "llava_onevision")
CLIPS = clips()
TEXT = "a<|vision_start|><|video_pad|><|vision_end|>b"
GLM_TEXT = "a<|begin_of_video|><|video|><|end_of_video|>b"
ANSWERED = ("mp4", "webm")
TEXT_CASE = CASES[-1]


def text_of(model_type: str) -> str:
    return GLM_TEXT if model_type.startswith("glm") else TEXT


@cache
def loaded(model_type: str) -> tuple[Tokenizer, Any, MediaEncoder]:
    files = resolve_model(str(reference(model_type).folder), LoadConfig())
    args = load_model_args(files)
    tokenizer = load_tokenizer(files)
    processor = load_media_processor(MultimodalConfig(), files, args, tokenizer)
    encoder = MediaEncoder(None, load_normalisations(files, args), torch.float32, torch.device("cpu"), 0)  # type: ignore[arg-type]
    return tokenizer, processor, encoder


class Processed:
    """A clip as our processor has it."""

    def __init__(self, model_type: str, content: bytes) -> None:
        tokenizer, processor, encoder = loaded(model_type)
        with VideoFile(content, 10**6, "part") as video:
            medium = processor.process_video(video, "part")
        prompt = tokenizer.encode(text_of(model_type), add_special_tokens=False)
        at = next(at for at, token_id in enumerate(prompt) if processor.marks.get(token_id) == "video")
        self.token_ids = [*prompt[:at], *medium.expansion, *prompt[at + 1 :]]
        self.grid = medium.item.grid
        self.time_step = medium.time_step
        settings = processor.video
        frames = encoder.frames(medium.item)
        self.video_id = processor.targets["video"]
        self.has_grid = model_type != "llava_onevision"
        if self.has_grid:
            self.patches = patchify(frames, settings.patch_size, settings.temporal_patch_size, settings.merge_size)
        else:
            self.patches = frames[None]

    def inputs(self, token_ids: list[int]) -> dict[str, torch.Tensor]:
        """Return the inputs of transformers' model for a prompt with the clip."""
        ids = torch.tensor([token_ids])
        inputs = {"input_ids": ids, "pixel_values_videos": self.patches}
        if not self.has_grid:
            return inputs
        types = 2 * (ids == self.video_id).int()
        return {**inputs, "mm_token_type_ids": types, "video_grid_thw": torch.tensor([self.grid])}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("name", CLIPS)
def test_frames_tokens_and_pixels_are_transformers(model_type: str, name: str) -> None:
    expected = reference_video(reference(model_type).folder, CLIPS[name], text_of(model_type))
    found = Processed(model_type, CLIPS[name])
    assert found.token_ids == expected["input_ids"][0].tolist()
    torch.testing.assert_close(found.patches, expected["pixel_values_videos"], atol=1e-5, rtol=1e-5)
    if "video_grid_thw" in expected:
        assert list(found.grid) == expected["video_grid_thw"][0].tolist()
    if "second_per_grid_ts" in expected:
        assert found.time_step == pytest.approx(2 * float(expected["second_per_grid_ts"][0]))


@pytest.mark.parametrize("model_type", [*MODELS, "qwen3_vl_moe", "glm4v_moe"])
def test_answers_about_videos_have_transformers_tokens(model_type: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    with_prompt = msgspec.structs.replace(params, prompt_logprobs=0)
    parts = [{"type": "video", "video": CLIPS[name]} for name in ANSWERED]
    conversations = [[{"role": "user", "content": [part]}] for part in parts]
    conversations.append(TEXT_CASE.messages(with_pictures=True))
    expected: list[Answer] = []
    for options, repetitions in (
        ({}, (with_prompt, params, params)),  # the last finds what the one before left in the caches
        ({"max_num_batched_tokens": 9, "enable_prefix_cache": False}, (with_prompt,)),
    ):
        with LLM(
            str(reference(model_type).folder),
            dtype="float32",
            max_model_len=512,
            threads=1,
            check_integrity=True,
            **options,
        ) as llm:
            for part, name in zip(parts, ANSWERED, strict=True):
                prepared = llm.master.prepare_media_completion(text_of(model_type), [part], params)  # type: ignore[attr-defined]
                assert prepared.prompt_token_ids == Processed(model_type, CLIPS[name]).token_ids
            if not expected:
                expected = [
                    expected_answer(llm, model_type, *case) for case in zip(ANSWERED, conversations, strict=False)
                ]
                expected.append(answer(model_type, TEXT_CASE))
                for messages, wanted in zip(conversations, expected, strict=True):
                    prepared = llm.master.prepare_chat(ChatInput(messages=messages), params)
                    check_positions(prepared, reference(model_type), wanted)
            for sampling in repetitions:
                for output, wanted in zip(llm.chat(conversations, sampling), expected, strict=True):
                    assert output.error is None
                    assert output.outputs[0].token_ids == wanted.token_ids
                    check_logprobs(output, wanted)


def expected_answer(llm: LLM, model_type: str, name: str, messages: list[dict[str, Any]]) -> Answer:
    """Return transformers' answer about a clip, given our prompt."""
    found = Processed(model_type, CLIPS[name])
    inputs = found.inputs(llm.master.tokenize_chat(ChatInput(messages=messages)))
    if model_type == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = torch.tensor([found.time_step / 2])
    return answer_to(reference(model_type), inputs)


def test_broken_and_hostile_files_are_refused() -> None:
    files = {
        "empty": b"",
        "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "picture": b"\x89PNG\r\n\x1a\n",
        "cut": CLIPS["mp4"][:300],
        "zeros": CLIPS["mp4"][:40] + bytes(4000),
    }
    for content in files.values():
        with pytest.raises(InvalidRequest):
            Processed("qwen2_vl", content)
    with pytest.raises(InvalidRequest, match="limit"), VideoFile(clip(2, 5, 640, 480), 1000, "part"):
        pass


def test_fuzzed_clips_are_served_or_refused() -> None:
    generator = random.Random(1)
    refused = 0
    for index in range(60):
        content = bytearray(CLIPS[("mp4", "avi", "webm")[index % 3]])
        for _ in range(generator.randint(1, 40)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        if index % 4 == 0:
            content = content[: generator.randrange(len(content))]
        try:
            Processed("qwen2_vl", bytes(content))
        except InvalidRequest:
            refused += 1
    assert refused > 5
