"""What /v1/chat/completions answers, over a master that plays a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_server.state import ServerState

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def chat(master: FakeMaster | None = None, /, **fields: Any) -> Answer:
    """Make one chat request."""
    return serve(lambda app, _: call(app, CHAT, HELLO | fields), master or FakeMaster())


def test_a_whole_answer() -> None:
    answer = chat(n=2)
    assert answer.status == 200
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "org/fake"
    assert body["id"].startswith("chatcmpl-")
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice in body["choices"]:
        assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"] is None
    assert body["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 12,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_streamed_answer_in_order() -> None:
    answer = chat(stream=True, n=2)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = answer.events()
    assert done == "[DONE]"
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello"
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_comes_once_and_last() -> None:
    *chunks, done = chat(stream=True, stream_options={"include_usage": True}).events()
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_empty_stream_options_bring_no_usage() -> None:
    *chunks, _ = chat(stream=True, stream_options={}).events()
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_join_to_the_text(is_streamed: bool) -> None:
    answer = chat(FakeMaster("客单价".encode()), logprobs=True, top_logprobs=1, stream=is_streamed)
    choices = (
        [choice for chunk in answer.events()[:-1] for choice in chunk["choices"]]
        if is_streamed
        else answer.json()["choices"]
    )
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "客单价"
    assert entries[0]["token"] == r"bytes:\xe5"
    assert entries[0]["top_logprobs"] == [{"token": "B", "logprob": -0.5, "bytes": [66]}]


def test_logprobs_alone_have_no_alternatives() -> None:
    master = FakeMaster()
    chat(master, logprobs=True)
    assert master.seen[0][1].logprobs == 0


def test_options_reach_the_master() -> None:
    master = FakeMaster()
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 0, "stop": "x", "stop_token_ids": [3],
        "ignore_eos": True, "min_tokens": 1, "max_tokens": 5, "logit_bias": {"65": -1}, "repetition_penalty": 1.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "include_stop_str_in_output": True,
    }  # fmt: skip
    chat(master, **options, priority=-2, cache_salt="s", offline=True, timeout=60)
    _, params, others = master.seen[0]
    expected = options | {"stop": ("x",), "stop_token_ids": (3,), "logit_bias": {65: -1.0}}
    assert {name: getattr(params, name) for name in expected} == expected
    assert (others["priority"], others["cache_salt"], others["is_offline"]) == (-2, "s", True)
    assert others["deadline_s"] is not None


def test_defaults() -> None:
    master = FakeMaster()
    chat(master, temperature=None, max_tokens=None, n=None, stop=None, tools=None, tool_choice="none")
    params = master.seen[0][1]
    assert (params.temperature, params.max_tokens, params.n, params.stop) == (1.0, None, 1, ())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 2}, 2),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 2, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 2, "max_completion_tokens": None}, 2),
    ],
)
def test_which_max_tokens_counts(fields: dict[str, Any], expected: int) -> None:
    master = FakeMaster()
    chat(master, **fields)
    assert master.seen[0][1].max_tokens == expected


def test_messages_reach_the_template_as_they_are() -> None:
    master = FakeMaster()
    call_ = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call_]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "assistant", "reasoning_content": "hm"},
    ]
    chat(master, messages=messages, chat_template_kwargs={"enable_thinking": False}, continue_final_message=True)
    given = master.seen[0][0]
    del messages[2]["content"]
    assert given.messages == messages
    assert given.template_kwargs == {"enable_thinking": False}
    assert (given.add_generation_prompt, given.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": 10**30}, "n"),
        ({"n": True}, "n"),
        ({"top_k": 2**40}, "top_k"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": [""]}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 999}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"best_of": 0}, "best_of"),
        ({"timeout": 0}, "timeout"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": "xml"}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"guided_json": {}} | {"guided_regex": "a"}, "guided_regex"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_is_refused_names_its_field(fields: dict[str, Any], param: str, is_streamed: bool) -> None:
    answer = chat(None, stream=is_streamed, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


def test_stream_options_need_a_stream() -> None:
    assert chat(stream_options={"include_usage": True}).error["param"] == "stream_options"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"tools": [], "tool_choice": None},
        {"tool_choice": "auto"},
        {"user": "me", "store": False, "metadata": {}, "parallel_tool_calls": True, "unheard_of": 1},
        {"best_of": 1},
        {"temperature": 1e-12},
        {"temperature": 1},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(None, **fields).status == 200


def test_an_error_in_a_stream_is_one_event_and_the_end() -> None:
    master = FakeMaster()
    master.fail_at = 3
    answer = chat(master, stream=True)
    *chunks, last = answer.events()
    assert answer.status == 200
    assert answer.is_complete
    assert "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]) == "hel"
    assert last["error"] == {
        "message": "The model raised.", "type": "server_error", "param": None, "code": "request_failed",
    }  # fmt: skip


@pytest.mark.parametrize(("is_streamed", "fail_at"), [(False, 3), (True, 0)])
def test_an_error_before_the_first_byte_has_its_own_status(is_streamed: bool, fail_at: int) -> None:
    master = FakeMaster()
    master.fail_at = fail_at
    answer = chat(master, stream=is_streamed)
    assert answer.status == 500
    assert answer.error["code"] == "request_failed"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_is_cancelled(is_streamed: bool) -> None:
    master = FakeMaster()
    master.hold_at = 3

    async def scenario(app: Any, state: ServerState) -> None:
        hang_up, answer = asyncio.Event(), Answer()
        content = HELLO | {"stream": is_streamed}
        request = asyncio.create_task(call(app, CHAT, content, hang_up=hang_up, answer=answer))
        while not master.is_holding or (is_streamed and not answer.parts):
            await asyncio.sleep(0.001)
        hang_up.set()
        await request
        assert len(master.cancelled) == 1
        metrics = state.metrics.exposition().decode()
        assert 'xllm:request_success_total{finished_reason="abort",model_name="org/fake"} 1.0' in metrics

    serve(scenario, master)


def test_a_dead_engine_ends_running_requests() -> None:
    master = FakeMaster()
    master.hold_at = 0

    async def scenario(app: Any, state: ServerState) -> None:
        running = asyncio.create_task(call(app, CHAT, HELLO))
        while not master.is_holding:
            await asyncio.sleep(0.001)
        master.die("It was killed.")
        answer = await running
        assert answer.status == 503
        assert answer.error["code"] == "engine_dead"
        late = await call(app, CHAT, HELLO)
        assert late.status == 503
        health = await call(app, "/health")
        assert health.status == 503
        assert health.json()["reason"] == "It was killed."

    serve(scenario, master)


def test_a_stream_whose_head_cannot_be_sent_is_cancelled() -> None:
    master = FakeMaster()
    master.hold_at = 1

    async def scenario(app: Any, state: ServerState) -> None:
        with pytest.raises(BrokenPipeError):
            await call(app, CHAT, HELLO | {"stream": True}, answer=BrokenAnswer())
        assert len(master.cancelled) == 1

    serve(scenario, master)


class BrokenAnswer(Answer):
    """An answer that nobody takes."""

    @property
    def status(self) -> int:
        return 0

    @status.setter
    def status(self, value: int) -> None:
        if value:
            raise BrokenPipeError
