"""What /v1/completions answers, over a master that plays a script."""

from __future__ import annotations

from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve

COMPLETIONS = "/v1/completions"


def complete(master: FakeMaster | None = None, /, **fields: Any) -> Answer:
    """Make one completion request."""
    return serve(lambda app, _: call(app, COMPLETIONS, {"prompt": "ab"} | fields), master or FakeMaster())


def test_a_whole_answer() -> None:
    body = complete(model="org/fake").json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 6


def test_sixteen_tokens_are_the_default() -> None:
    answer = complete(FakeMaster(b"x" * 50))
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("x" * 16, "length")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_prompts_times_n_keep_their_places(is_streamed: bool) -> None:
    answer = complete(prompt=["a", "bc", "def"], n=2, stream=is_streamed, echo=True)
    texts: dict[int, str] = {}
    reasons: dict[int, list[str]] = {}
    for body in answer.events()[:-1] if is_streamed else [answer.json()]:
        for choice in body["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"] is not None:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    prompts = ["a", "a", "bc", "bc", "def", "def"]
    assert texts == {index: f"{prompt}hello" for index, prompt in enumerate(prompts)}
    assert reasons == {index: ["stop"] for index in range(6)}


@pytest.mark.parametrize(
    ("prompt", "expected"), [([97, 98], [[97, 98]]), ([[97], [98]], [[97], [98]]), (["a", [98]], ["a", [98]])]
)
def test_prompts_of_tokens(prompt: Any, expected: list[Any]) -> None:
    master = FakeMaster()
    complete(master, prompt=prompt)
    assert [seen[0] for seen in master.seen] == expected


@pytest.mark.parametrize("prompt", [["a", 5], "", [""], [], [[]], None, 5, {"a": 1}, [[1], ""], [1.5], ["x"] * 513])
def test_wrong_prompts(prompt: Any) -> None:
    answer = complete(prompt=prompt)
    assert answer.status == 400
    assert answer.error["param"].startswith("prompt")


def test_echo_with_logprobs_and_nothing_generated() -> None:
    body = complete(prompt="ab", echo=True, max_tokens=0, logprobs=1).json()
    assert body["usage"]["completion_tokens"] == 0
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"A": -0.5, "b": -1.0}],
        "text_offset": [0, 1],
    }


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_follow_the_echoed_prompt(is_streamed: bool) -> None:
    answer = complete(FakeMaster("é!".encode()), prompt="ü", echo=True, logprobs=0, stream=is_streamed)
    bodies = answer.events()[:-1] if is_streamed else [answer.json()]
    parts = [choice["logprobs"] for body in bodies for choice in body["choices"]]
    tokens = [token for part in parts for token in part["tokens"]]
    assert tokens == [r"bytes:\xc3", r"bytes:\xbc", r"bytes:\xc3", r"bytes:\xa9", "!"]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 0, 1, 1, 2]
    assert [value for part in parts for value in part["token_logprobs"]] == [None, -1.0, -0.25, -0.25, -0.25]


def test_tokens_are_echoed_as_text() -> None:
    assert complete(prompt=[104, 105], echo=True, max_tokens=1).json()["choices"][0]["text"] == "hih"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 513}, "beam_width"),
        ({"beam_width": 2, "stop": "x"}, "stop"),
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"prompt": ["a"] * 100, "best_of": 100}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"prompt": [1] * 5000}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
    ],
)
def test_what_is_refused_names_its_field(fields: dict[str, Any], param: str) -> None:
    answer = complete(**fields)
    assert answer.status == 400
    assert answer.error["param"] == param


def test_usage_of_a_stream_counts_every_choice() -> None:
    *chunks, done = complete(prompt=["a", "b"], n=2, stream=True, stream_options={"include_usage": True}).events()
    assert done == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 2
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
