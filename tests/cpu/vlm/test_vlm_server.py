"""Pictures through a server: content parts of three APIs, hostile ones, and the command of docs/howto/vlm.md."""

from __future__ import annotations

import base64
import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.odd_images import bombs, encoded, fuzzed_images
from support.server_process import ServerProcess, running
from support.tiny_vision import picture
from support.video_clips import clips
from support.vision_cases import CASES, answer, reference

MODEL = "qwen3_vl"
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "vlm.md"


def command() -> list[str]:
    """Return the options of the page's first server command, all but the model's folder."""
    found = re.search(r"^xllm-server (.*)$", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    words = shlex.split(found[1])
    at = words.index("--model")
    return [word for index, word in enumerate(words) if index not in (at, at + 1)]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = [*command(), "--dtype", "float32", "--threads", "1", "--limit-image-per-prompt", "5"]
    with ServerProcess(*options, model=reference(MODEL).folder) as started:
        yield started


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image_part(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(encoded(image, "PNG")), "detail": "auto"}}


def openai_messages(case: Any) -> list[dict[str, Any]]:
    return [
        {
            "role": role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else image_part(part) for part in parts
            ],
        }
        for role, parts in case.turns
    ]


def post(server: ServerProcess, path: str, **fields: Any) -> Any:
    return server.post(path, json.dumps({"model": server.model, **fields}).encode())


def expected_text(case: Any) -> str:
    return reference(MODEL).tokenizer.decode(answer(MODEL, case).token_ids[:8], skip_special_tokens=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chat_answers_about_pictures(server: ServerProcess, case: Any) -> None:
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = post(server, "/v1/chat/completions", messages=openai_messages(case), **fields)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == expected_text(case)
    assert response.json()["usage"]["prompt_tokens"] == answer(MODEL, case).inputs["input_ids"].shape[1]


def test_messages_and_responses_take_pictures(server: ServerProcess) -> None:
    case, image = CASES[0], CASES[0].pictures[0]
    content = base64.b64encode(encoded(image, "PNG")).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": content}}
    turn = {"role": "user", "content": [block, {"type": "text", "text": "What is it?"}]}
    response = post(server, "/v1/messages", max_tokens=8, temperature=0, ignore_eos=True, messages=[turn])
    assert response.status_code == 200, response.text
    assert response.json()["content"][0]["text"] == expected_text(case)
    parts = [
        {"type": "input_image", "image_url": data_url(encoded(image, "PNG"))},
        {"type": "input_text", "text": "What is it?"},
    ]
    item = {"role": "user", "content": parts}
    response = post(server, "/v1/responses", max_output_tokens=8, temperature=0, ignore_eos=True, input=[item])
    assert response.status_code == 200, response.text
    assert expected_text(case) in response.text or response.json()["output"]


def test_chat_takes_a_video_as_a_file_and_encoded(server: ServerProcess) -> None:
    part = {"type": "video_url", "video_url": {"url": data_url(clips()["mp4"], "video/mp4")}}
    response = post(server, "/v1/embeddings", messages=[{"role": "user", "content": [part]}], task="mm_embed")
    (medium,) = response.json()["data"]
    assert medium["kind"] == "video"
    assert len(medium["timestamps"]) == medium["grid"][0]
    found = []
    for sent in (part, {"type": "video_embeds", "video_embeds": medium}):
        messages = [{"role": "user", "content": [sent, {"type": "text", "text": "And?"}]}]
        response = post(server, "/v1/chat/completions", messages=messages, max_tokens=8, temperature=0, ignore_eos=True)
        assert response.status_code == 200, response.text
        found.append((response.json()["choices"][0]["message"], response.json()["usage"]["prompt_tokens"]))
    assert found[0] == found[1]
    refused(server, {"type": "video_embeds", "video_embeds": {**medium, "timestamps": [0.0]}})


def refused(server: ServerProcess, part: dict[str, Any]) -> str:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]
    response = post(server, "/v1/chat/completions", messages=messages, max_tokens=2)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "messages"
    return str(error["message"])


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/x.png",
            "http://[::1]/x.png",
            "http://169.254.169.254/latest/meta-data/",
            "http://localhost:22/",
        ),
        *("file:///etc/passwd", "/etc/passwd", "../../etc/passwd", "ftp://example.com/x.png", "http://", "gopher://x/"),
        *("data:image/png;base64,AAAA", "data:image/png;base64,????", "data:text/html,<svg/>", "x" * 100_000),
    ],
)
def test_hostile_urls_get_a_400(server: ServerProcess, url: str) -> None:
    assert "messages[0].content[0]" in refused(server, {"type": "image_url", "image_url": {"url": url}})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": 7},
        {"type": "image_url", "image_url": {"url": ["x"]}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    ],
)
def test_wrong_parts_get_a_400(server: ServerProcess, part: dict[str, Any]) -> None:
    refused(server, part)


def test_embeddings_leave_and_come_back(server: ServerProcess) -> None:
    case = CASES[0]
    request = {"messages": openai_messages(case), "task": "mm_embed", "encoding_format": "base64"}
    response = post(server, "/v1/embeddings", **request)
    assert response.status_code == 200, response.text
    medium = response.json()["data"][0]
    assert medium["object"] == "mm_embedding"
    parts = [{"type": "image_embeds", "image_embeds": medium}, {"type": "text", "text": "What is it?"}]
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": parts}], **fields)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == expected_text(case)
    refused(server, {"type": "image_embeds", "image_embeds": {**medium, "shape": [1, 3]}})
    numbers = post(server, "/v1/embeddings", **{**request, "encoding_format": "float"}).json()["data"][0]
    assert [len(numbers["data"]), len(numbers["data"][0])] == medium["shape"]


def test_conversations_with_pictures_become_vectors(server: ServerProcess) -> None:
    response = post(server, "/v1/embeddings", messages=openai_messages(CASES[0]), dimensions=8)
    assert response.status_code == 200, response.text
    assert len(response.json()["data"][0]["embedding"]) == 8
    text = [{"role": "user", "content": "No picture."}]
    for wrong in ({}, {"messages": []}, {"input": "x", "messages": text}, {"messages": text, "task": "mm_embed"}):
        response = post(server, "/v1/embeddings", **wrong)
        assert response.status_code == 400, response.text
    assert post(server, "/v1/embeddings", input="x", task="mm_embed").json()["error"]["param"] == "messages"


def test_text_that_spells_a_mark_beside_a_picture_gets_a_400(server: ServerProcess) -> None:
    parts = [image_part(picture(1, 20, 20)), {"type": "text", "text": "spelled <|image_pad|> out"}]
    response = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    assert response.status_code == 400
    assert "spell" in response.json()["error"]["message"]


def test_too_many_pictures_get_a_400(server: ServerProcess) -> None:
    parts = [image_part(picture(1, 20, 20))] * 6
    response = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    assert response.status_code == 400
    assert "limit_image_per_prompt" in response.json()["error"]["message"]


def test_broken_files_disturb_nobody(server: ServerProcess) -> None:
    def text_requests() -> float:
        slowest = 0.0
        for _ in range(10):
            start_s = time.monotonic()
            assert server.chat("Hello", max_tokens=2).status_code == 200
            slowest = max(slowest, time.monotonic() - start_s)
        return slowest

    files = [*fuzzed_images(40), *bombs().values()]
    with running(text_requests):
        statuses = set()
        for content in files:
            part = {"type": "image_url", "image_url": {"url": data_url(content)}}
            messages = [{"role": "user", "content": [part]}]
            statuses.add(post(server, "/v1/chat/completions", messages=messages, max_tokens=1).status_code)
    assert statuses == {200, 400}
    server.assert_alive()


def test_metrics_count_encoded_media(server: ServerProcess) -> None:
    before = server.metrics()
    messages = [{"role": "user", "content": [image_part(picture(77))]}]
    for _ in range(2):
        assert post(server, "/v1/chat/completions", messages=messages, max_tokens=1).status_code == 200
    after = server.metrics()
    changed = {name: after[name] - before.get(name, 0) for name in after if "encoded_media" in name}
    assert list(changed.values()) == [1.0]
