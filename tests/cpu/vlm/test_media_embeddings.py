"""What vision towers make of media, on its way out and back in; vectors of conversations with pictures; prompts with data."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from support.video_clips import clip
from support.vision_cases import CASES, NUM_TOKENS, answer, reference
from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_runtime.llm import LLM
from xllm_runtime.processors.embedded_media import read_embeddings

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
CASE = CASES[3]
VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module", params=["qwen3_vl", "llava_onevision"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    folder = reference(request.param).folder
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "threads": 1, "check_integrity": True}
    with LLM(str(folder), **options) as served:
        served.name = request.param  # type: ignore[attr-defined]
        yield served


def replaced(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation with `parts` in place of its pictures."""
    waiting = iter(parts)
    return [
        {**turn, "content": [next(waiting) if part["type"] == "image" else part for part in turn["content"]]}
        for turn in messages
    ]


def test_embeddings_that_come_back_are_answered_like_their_pictures(llm: LLM) -> None:
    expected = answer(llm.name, CASE).token_ids  # type: ignore[attr-defined]
    messages = CASE.messages(with_pictures=True)
    found = llm.embed_media(messages)
    assert [medium.kind for medium in found] == ["image", "image"]
    num_encoded = llm.master.stats.num_encoded_media
    arrays = [{"data": medium.values, "grid": medium.grid} for medium in found]
    maps = [
        {"data": base64.b64encode(medium.values.tobytes()).decode(), "shape": medium.values.shape, "grid": medium.grid}
        for medium in found
    ]
    packed = [
        base64.b64encode(
            msgspec.msgpack.encode({"data": m.values.tobytes(), "shape": m.values.shape, "grid": m.grid})
        ).decode()
        for m in found
    ]
    for contents in (arrays, maps, packed):
        parts = [{"type": "image_embeds", "image_embeds": content} for content in contents]
        output = llm.chat(replaced(messages, parts), GREEDY)[0]
        assert output.error is None
        assert output.outputs[0].token_ids == expected
    assert llm.master.stats.num_encoded_media == num_encoded


def test_media_that_were_only_embedded_leave_no_prompt_behind(llm: LLM) -> None:
    messages = CASES[0].messages(with_pictures=True)
    first = llm.embed_media(messages)
    hits = llm.master.stats.prefix_cache_hits
    again = llm.embed_media(messages)
    assert llm.master.stats.prefix_cache_hits == hits
    np.testing.assert_array_equal(first[0].values, again[0].values)
    with pytest.raises(InvalidRequest, match="no image"):
        llm.embed_media([{"role": "user", "content": "text"}])


def test_vectors_of_conversations_are_transformers_last_hidden_states(llm: LLM) -> None:
    name = llm.name  # type: ignore[attr-defined]
    ref = reference(name)
    with torch.inference_mode():
        hidden = ref.model(**answer(name, CASE).inputs, output_hidden_states=True).hidden_states[-1][0, -1]
    output = llm.embed_chat(CASE.messages(with_pictures=True), add_generation_prompt=True)[0]
    assert output.embedding is not None
    torch.testing.assert_close(torch.from_numpy(output.embedding), hidden / hidden.norm(), atol=1e-4, rtol=0)


def test_prompts_with_data_beside_them_are_answered_like_chats(llm: LLM) -> None:
    name = llm.name  # type: ignore[attr-defined]
    prompt = reference(name).tokenizer.apply_chat_template(
        CASE.messages(with_pictures=False), tokenize=False, add_generation_prompt=True
    )
    prompts: list[Any] = [
        {"prompt": prompt, "multi_modal_data": {"image": CASE.pictures}},
        {"prompt_token_ids": [1, 2, 3]},
        {"prompt": prompt, "multi_modal_data": {"sound": b""}},
        {"prompt": prompt, "multi_modal_data": {"image": CASE.pictures[0]}},
        {"text": prompt},
    ]
    outputs = llm.generate(prompts, GREEDY)
    assert outputs[0].outputs[0].token_ids == answer(name, CASE).token_ids
    assert outputs[1].error is None
    vector = llm.embed_chat(CASE.messages(with_pictures=True), add_generation_prompt=True)[0].embedding
    found = llm.embed([prompts[0], prompts[1], prompts[2]])
    np.testing.assert_allclose(found[0].embedding, vector, atol=1e-5)
    np.testing.assert_allclose(found[1].embedding, llm.embed([1, 2, 3])[0].embedding, atol=1e-5)
    assert found[2].error_kind == "invalid_request"
    for output, words in zip(outputs[2:], ("sound", "place-holders", "nothing else"), strict=True):
        assert words in (output.error or "")
        assert output.error_kind == "invalid_request"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (7, "no embeddings"),
        ("????", "no embeddings"),
        ("AAAA", "no embeddings"),
        ({}, "no embeddings"),
        ({"data": "AAAA", "rows": 3}, "no embeddings"),
        ({"data": "AAAA"}, "shape"),
        ({"data": "A", "shape": [1, 1]}, "base64"),
        ({"data": "AAAA", "shape": [2, 2]}, "bytes"),
        ({"data": "AAAA", "shape": [0, 2]}, "shape"),
        ({"data": "AAAA", "shape": [1 << 40, 1 << 40]}, "shape"),
        ({"data": "AAAA", "shape": [1, 1], "dtype": "int8"}, "no embeddings"),
        ({"data": {}, "shape": [1, 1]}, "neither"),
        ({"data": [[1.0, 2.0], [3.0]]}, "equally long"),
        ({"data": [["x"]]}, "equally long"),
        ({"data": [[]]}, "shape"),
        ({"data": [[1e39]]}, "finite"),
        ({"data": [[1.0]], "grid": [1, 2]}, "no embeddings"),
        ({"data": [[1.0]], "grid": [0, 2, 2]}, "grid"),
        ({"data": [[1.0]], "timestamps": [0.0, float("nan")]}, "timestamps"),
        ({"data": [[1.0]], "timestamps": [-1.0]}, "timestamps"),
        ({"data": [[1.0]], "timestamps": [2.0, 1.0]}, "timestamps"),
        ({"data": [[1.0]], "timestamps": [1e300]}, "timestamps"),
        ({"data": [[1.0]], "timestamps": [10**400]}, "no embeddings"),
        ({"data": [[1.0]], "timestamps": ["1"]}, "no embeddings"),
        ({"data": VALUES, "timestamps": [float("inf")]}, "timestamps"),
        ({"data": VALUES, "rows": 3}, "no embeddings"),
        ({"data": "AADAfw==", "shape": [1, 1]}, "finite"),
        ({"data": "A" * 4000, "shape": [1, 750]}, "larger than"),
        (np.zeros((2, 2), np.int32), "floats"),
        (np.zeros(4, np.float32), "rows"),
    ],
)
def test_wrong_embeddings_are_refused_by_field(content: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_embeddings(content, "messages[0].content[0]", 1000)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_of_every_type_are_read(dtype: str) -> None:
    content = torch.from_numpy(VALUES).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
    found = read_embeddings({"data": content, "shape": (4, 3), "dtype": dtype, "grid": (1, 2, 2)}, "part", 1000)
    np.testing.assert_array_equal(found.values, VALUES)
    assert found.grid == (1, 2, 2)


@pytest.mark.parametrize(
    "part",
    [
        {"data": [[0.0] * 64] * 4, "grid": [1, 4, 4]},
        {"data": [[0.0] * 192] * 4},
        {"data": [[0.0] * 192] * 4, "grid": [1, 3, 4]},
        {"data": [[0.0] * 192] * 4, "grid": [2, 4, 4]},
        {"data": [[0.0] * 192] * 4, "grid": [1, 2, 2]},
    ],
)
def test_embeddings_that_do_not_fit_the_model_are_refused(llm: LLM, part: dict[str, Any]) -> None:
    width = 192 if llm.name == "qwen3_vl" else 63  # type: ignore[attr-defined]
    if width == 63:
        part = {"data": [[0.0] * width] * 4}
    messages = [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": part}]}]
    output = llm.chat(messages, GREEDY)[0]
    assert output.error_kind == "invalid_request"
    assert "messages[0].content[0]" in (output.error or "")


VIDEO_MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "llava_onevision")


@pytest.mark.parametrize("model_type", VIDEO_MODELS)
def test_videos_that_come_encoded_are_answered_like_their_files(model_type: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    content = clip(23, 5, 64, 90, container="webm", codec="libvpx", seed=2)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "threads": 1, "check_integrity": True}
    with LLM(str(reference(model_type).folder), max_num_batched_tokens=40, **options) as llm:
        messages = conversation({"type": "video", "video": content})
        expected = llm.chat(messages, params)[0]
        assert expected.error is None
        (medium,) = llm.embed_media(messages)
        assert medium.kind == "video"
        num_encoded = llm.master.stats.num_encoded_media
        given = {"data": medium.values, "grid": medium.grid, "timestamps": medium.timestamps}
        written = {
            **given,
            "data": base64.b64encode(medium.values.tobytes()).decode(),
            "shape": medium.values.shape,
        }
        for embeds in (given, written):
            output = llm.chat(conversation({"type": "video_embeds", "video_embeds": embeds}), params)[0]
            assert output.error is None
            assert output.num_prompt_tokens == expected.num_prompt_tokens
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert llm.master.stats.num_encoded_media == num_encoded
        for wrong in wrong_videos(model_type, given):
            output = llm.chat(conversation({"type": "video_embeds", "video_embeds": wrong}), params)[0]
            assert output.error_kind == "invalid_request", wrong
            assert "messages[0].content[1]" in (output.error or "")


def conversation(part: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "Look: "}, part, {"type": "text", "text": " And?"}]
    return [{"role": "user", "content": parts}]


def wrong_videos(model_type: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield embeddings of a video that do not fit the model."""
    yield {**given, "data": given["data"][:, :-1]}
    if model_type == "llava_onevision":
        return
    frames, height, width = given["grid"]
    assert frames > 1
    yield {"data": given["data"]}
    yield {**given, "grid": (frames + 1, height, width)}
    yield {**given, "grid": (frames * height, 1, width)}
    yield {**given, "grid": (frames, height * width, 1)}
    if model_type != "qwen2_vl":
        yield {**given, "timestamps": []}
        yield {**given, "timestamps": given["timestamps"][:-1]}
    if model_type == "qwen2_5_vl":
        yield {**given, "timestamps": (*given["timestamps"][:-1], 1e6)}
