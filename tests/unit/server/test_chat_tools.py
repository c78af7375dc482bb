"""Tools and reasoning of /v1/chat/completions, over a master that plays a script."""

from __future__ import annotations

from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_framework.config import ModelConfig
from xllm_server.parsers.model_parsers import ModelParsers

TOOL = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
ONE_CALL = {"function": {"name": "f", "arguments": '{"a": [1, 2]}'}, "type": "function"}


def chat(reply: str | FakeMaster, parser: str = "hermes", reasoning: str = "think", **fields: Any) -> Answer:
    """Make one chat request with the tool f."""
    master = reply if isinstance(reply, FakeMaster) else FakeMaster(reply.encode())
    config = ModelConfig(tool_call_parser=parser, reasoning_parser=reasoning)
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **fields}
    parsers = ModelParsers.choose(config, "", "")
    return serve(lambda app, _: call(app, "/v1/chat/completions", body), master, parsers=parsers)


def whole_message(answer: Answer) -> dict[str, Any]:
    """Return the one message of a whole answer, ids checked and taken out."""
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    ids = [tool_call.pop("id") for tool_call in message.get("tool_calls", ())]
    assert all(ids)
    assert len(ids) == len(set(ids))
    return message


def joined_message(answer: Answer, index: int = 0) -> tuple[dict[str, Any], str | None]:
    """Return what a stream's deltas add up to, as `whole_message` does, and the finish reason."""
    message: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    reasons = []
    for choice in [c for chunk in answer.events()[:-1] for c in chunk["choices"] if c["index"] == index]:
        delta = choice["delta"]
        reasons.append(choice["finish_reason"])
        for field in ("role", "content", "reasoning_content"):
            if field in delta:
                message[field] = message.get(field, "") + delta[field]
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls)
                calls.append({"function": {"name": part["function"]["name"], "arguments": ""}, "type": part["type"]})
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return message, reasons[-1]


def test_a_call_alone_has_null_content() -> None:
    answer = chat(CALL)
    assert whole_message(answer) == {"role": "assistant", "content": None, "refusal": None, "tool_calls": [ONE_CALL]}
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"


def test_reasoning_text_and_calls() -> None:
    reply = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    expected = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [ONE_CALL] * 2}
    assert whole_message(chat(reply)) == expected | {"refusal": None}
    assert joined_message(chat(reply, stream=True)) == (expected, "tool_calls")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_plain_answer_has_no_trace_of_tools(is_streamed: bool) -> None:
    answer = chat("hello", stream=is_streamed)
    assert "tool_calls" not in answer.body.decode()
    assert "reasoning_content" not in answer.body.decode()
    assert '"finish_reason":"stop"' in answer.body.decode()


def test_chunks_hold_one_kind_each_and_arguments_come_in_pieces() -> None:
    chunks = [choice["delta"] for chunk in chat(f"Hi{CALL}", stream=True).events()[:-1] for choice in chunk["choices"]]
    assert all(len(delta) <= (2 if "role" in delta else 1) for delta in chunks)
    parts = [delta["tool_calls"][0] for delta in chunks if "tool_calls" in delta]
    assert len(parts) > 5
    assert [part.get("function", {}).get("name") for part in parts] == ["f"] + [None] * (len(parts) - 1)
    assert all("type" not in part and "id" not in part for part in parts[1:])


def test_the_template_sees_the_tools() -> None:
    master = FakeMaster(b"hello")
    chat(master)
    assert master.seen[0][0].tools == [TOOL]


def test_none_keeps_tools_from_the_model_and_from_the_parser() -> None:
    master = FakeMaster(CALL.encode())
    message = whole_message(chat(master, tool_choice="none"))
    assert master.seen[0][0].tools is None
    assert message["content"] == CALL
    assert "tool_calls" not in message


def test_one_call_only() -> None:
    reply = f"{CALL}\n{CALL}"
    assert len(whole_message(chat(reply, parallel_tool_calls=False))["tool_calls"]) == 1
    assert len(joined_message(chat(reply, parallel_tool_calls=False, stream=True))[0]["tool_calls"]) == 1


def test_several_choices_do_not_mix() -> None:
    answer = chat(f"<think>Hm</think>{CALL}", n=2, stream=True)
    assert joined_message(answer, 0) == joined_message(answer, 1)
    choices = chat(CALL, n=2).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 2


def test_a_cut_call_keeps_its_text_and_its_reason() -> None:
    answer = chat(CALL, max_tokens=len(CALL) - 20)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    arguments = whole_message(answer)["tool_calls"][0]["function"]["arguments"]
    assert arguments
    assert '{"a": [1, 2]}'.startswith(arguments)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_tokens_are_counted(is_streamed: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
    answer = chat("<think>abc</think>hello", n=2, **options)
    usage = answer.events()[-2]["usage"] if is_streamed else answer.json()["usage"]
    # Tokens are bytes: those of the thought and of its end tag, and the one that completes the opening tag.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * len(">abc</think>")}
    assert "completion_tokens_details" not in chat("hello", reasoning="none").json()["usage"]


def test_log_probabilities_of_every_token_come_with_the_chunks() -> None:
    reply = f"<think>abc</think>hello{CALL}"
    chunks = chat(reply, stream=True, logprobs=True).events()[:-1]
    entries = [
        e
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for e in choice["logprobs"]["content"]
    ]
    assert "".join(entry["token"] for entry in entries) == reply


def test_special_tokens_are_kept_for_parsers_that_read_them() -> None:
    for parser, keeps in (("hermes", False), ("kimi-k2", True)):
        master = FakeMaster(b"hello")
        chat(master, parser=parser)
        assert master.seen[0][1].skip_special_tokens is not keeps
    master = FakeMaster(b"hello")
    chat(master, parser="kimi-k2", tools=None)
    assert master.seen[0][1].skip_special_tokens


def test_thinking_begins_where_the_prompt_leaves_off() -> None:
    messages = [{"role": "user", "content": "<think>"}]
    message = whole_message(chat("Hm</think>Hi", messages=messages))
    assert (message["reasoning_content"], message["content"]) == ("Hm", "Hi")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>Well"}]
    message = whole_message(chat("Hm</think>Hi", messages=messages, continue_final_message=True))
    assert (message["reasoning_content"], message["content"]) == ("Hm", "Hi")


@pytest.mark.parametrize(
    ("kwargs", "reasoning"), [({}, "Hi"), ({"enable_thinking": False}, None), ({"thinking": False}, None)]
)
def test_thinking_can_be_turned_off(kwargs: dict[str, Any], reasoning: str | None) -> None:
    message = whole_message(chat("Hi", reasoning="deepseek-r1", chat_template_kwargs=kwargs))
    assert message.get("reasoning_content") == reasoning


def test_a_conversation_with_calls_goes_to_the_template() -> None:
    master = FakeMaster(b"hello")
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [ONE_CALL | {"id": "call_1"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    assert chat(master, messages=turns).status == 200
    seen = master.seen[0][0].messages
    assert seen[1]["tool_calls"] == [ONE_CALL | {"id": "call_1"}]
    assert seen[1]["reasoning_content"] == "Hm"
    assert seen[2]["tool_call_id"] == "call_1"


def test_a_long_answer_is_parsed_like_a_short_one() -> None:
    thought = "ab " * 1000
    message = whole_message(chat(f"<think>{thought}</think>{CALL}"))
    assert message["reasoning_content"] == thought
    assert message["tool_calls"] == [ONE_CALL]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 257}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
        ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": "f"}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "code"}}, "tool_choice.type"),
        ({"tool_choice": {"function": {"name": "f"}}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_is_refused_names_its_field(fields: dict[str, Any], param: str) -> None:
    answer = chat("hello", **fields)
    assert answer.status == 400
    assert answer.error["param"] == param


def test_tools_need_a_parser() -> None:
    answer = chat("hello", parser="none")
    assert answer.status == 400
    assert answer.error["param"] == "tools"
    assert "--tool-call-parser" in answer.error["message"]
    assert chat("hello", parser="none", tool_choice="none").status == 200
