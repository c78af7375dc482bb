"""Public cases, section 2.1: streaming and text."""

from __future__ import annotations

from typing import Any

import pytest
from xllm_script_model import RAISE, script

from support.server_process import ServerProcess

EMOJI = "😀".encode()
HANZI = "客".encode()


def chat_text(events: list[Any], index: int = 0) -> str:
    """Return the joined deltas of one choice."""
    choices = [choice for chunk in events if chunk != "[DONE]" for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices if choice["index"] == index)


def completion_text(events: list[Any]) -> str:
    """Return the joined texts of a streamed completion."""
    return "".join(choice["text"] for chunk in events if chunk != "[DONE]" for choice in chunk["choices"])


def finish_reason(events: list[Any]) -> str:
    """Return the one finish reason of a stream with one choice."""
    reasons = [c["finish_reason"] for chunk in events if chunk != "[DONE]" for c in chunk["choices"]]
    (reason,) = [reason for reason in reasons if reason is not None]
    return str(reason)


@pytest.mark.parametrize("tokens", [(EMOJI[:2], EMOJI[2:]), (HANZI[:2], HANZI[2:]), (b"a", EMOJI[:2], EMOJI[2:], b"b")])
def test_b01_characters_made_of_several_tokens(server: ServerProcess, tokens: tuple[bytes, ...]) -> None:
    prompt = script(*tokens)
    expected = b"".join(tokens).decode()
    assert server.chat(prompt).json()["choices"][0]["message"]["content"] == expected
    events = server.chat_events(prompt)
    assert chat_text(events) == expected
    assert "\ufffd" not in str(events)
    assert completion_text(server.completion_events(prompt)) == expected


def test_b02_a_token_with_the_tail_of_one_character_and_the_head_of_the_next(server: ServerProcess) -> None:
    text = "客单价"
    content = text.encode()
    prompt = script(content[:2], content[2:5], content[5:])
    choice = server.chat(prompt, logprobs=True).json()["choices"][0]
    assert choice["message"]["content"] == text
    entries = choice["logprobs"]["content"]
    assert len(entries) == 3
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == content
    events = server.chat_events(prompt, logprobs=True)
    assert chat_text(events) == text
    streamed = [
        byte
        for chunk in events[:-1]
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
        for byte in entry["bytes"]
    ]
    assert bytes(streamed) == content


def test_b04_no_piece_of_a_stop_string_is_sent(server: ServerProcess) -> None:
    prompt = script(b"H", b"i", b"W", b"XY", b"Z", b"!")
    events = server.chat_events(prompt, stop="WXYZ")
    assert chat_text(events) == "Hi"
    assert finish_reason(events) == "stop"
    choice = server.complete(prompt, stop=["WXYZ"]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hi", "stop")


def test_b05_a_stop_string_that_ends_inside_a_token(server: ServerProcess) -> None:
    prompt = script(b"a", b"b,c", b"d")
    assert chat_text(server.chat_events(prompt, stop="b,")) == "a"
    kept = server.chat(prompt, stop="b,", include_stop_str_in_output=True).json()["choices"][0]
    assert (kept["message"]["content"], kept["finish_reason"]) == ("ab,", "stop")


@pytest.mark.parametrize("tokens", [(b"ABCX",), (b"AB", b"C", b"X"), (b"A", b"B", b"C"), (b"X", b"ABC")])
def test_b07_a_near_miss_is_delivered(server: ServerProcess, tokens: tuple[bytes, ...]) -> None:
    prompt = script(*tokens)
    expected = b"".join(tokens).decode()
    events = server.chat_events(prompt, stop="ABCD")
    assert chat_text(events) == expected
    assert server.complete(prompt, stop="ABCD").json()["choices"][0]["text"] == expected


def test_b09_empty_stream_options_return_no_usage(server: ServerProcess) -> None:
    for events in (
        server.chat_events(script("ok"), stream_options={}),
        server.completion_events(script("ok"), stream_options={}),
    ):
        assert events[-1] == "[DONE]"
        assert all(chunk["choices"] and not chunk.get("usage") for chunk in events[:-1])


def test_b10_exactly_one_usage_chunk(server: ServerProcess) -> None:
    options = {"stream_options": {"include_usage": True}}
    for events in (
        server.chat_events(script("ok"), **options),
        server.completion_events(script("ok"), **options),
    ):
        assert events[-1] == "[DONE]"
        *chunks, last = events[:-1]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 3
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 3
        assert all(chunk["usage"] is None for chunk in chunks)


def test_b11_each_choice_ends_exactly_once(server: ServerProcess) -> None:
    events = server.chat_events(script("hello"), n=3)
    reasons: dict[int, list[str]] = {}
    for chunk in events[:-1]:
        for choice in chunk["choices"]:
            if choice["finish_reason"] is not None:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert reasons == {0: ["stop"], 1: ["stop"], 2: ["stop"]}
    assert [chat_text(events, index) for index in range(3)] == ["hello"] * 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_b13_best_of_other_than_n_is_a_stream_where_one_is_asked_for(server: ServerProcess, is_streamed: bool) -> None:
    if is_streamed:
        events = server.completion_events(script("ok"), best_of=2, n=1)
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "ok"
        assert events[-1] == "[DONE]"
    else:
        [choice] = server.complete(script("ok"), best_of=2, n=1).json()["choices"]
        assert choice["text"] == "ok"
    refused = server.complete(script("ok"), best_of=1, n=2, stream=is_streamed)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "best_of"


def test_b14_an_error_in_a_stream_is_one_event_and_the_end(server: ServerProcess) -> None:
    events = server.chat_events(script("H", "e", "l", "l", "o", RAISE))
    *chunks, last = events
    assert chat_text(chunks) == "Hello"
    assert set(last) == {"error"}
    assert last["error"]["message"]
    assert "[DONE]" not in events
    whole = server.chat(script("H", "e", "l", "l", "o", RAISE))
    assert whole.status_code == 500
    assert whole.json()["error"]["message"]
    server.assert_alive()


def test_b14_what_is_wrong_from_the_start_is_no_stream(server: ServerProcess) -> None:
    answer = server.chat(script("ok"), stream=True, temperature=9)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    at_once = server.chat(script(RAISE), stream=True)
    assert at_once.status_code == 500
    assert at_once.json()["error"]["message"]
