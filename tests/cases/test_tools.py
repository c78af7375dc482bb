"""Public cases, section 2.5: tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from xllm_script_model import script

from support import element_call_texts
from support.parser_driving import TOOLS, Call, cut_everywhere, parse_calls
from support.server_process import ServerProcess
from support.shared_servers import tool_server
from support.tool_call_texts import hermes, named

Calls = list[tuple[str, str]]


@pytest.fixture
def hermes_server() -> Iterator[ServerProcess]:
    """The script model, read by the parser for Hermes and Qwen."""
    yield tool_server("hermes")
    tool_server("hermes").assert_alive()


@pytest.fixture
def coder_server() -> Iterator[ServerProcess]:
    """The script model, read by the parser for Qwen3-Coder."""
    yield tool_server("qwen3_coder")
    tool_server("qwen3_coder").assert_alive()


def whole_calls(server: ServerProcess, prompt: str, **fields: Any) -> Calls:
    """Return (name, arguments) of each call of a whole answer."""
    answer = server.chat(prompt, tools=TOOLS, **fields)
    assert answer.status_code == 200, answer.text
    calls = answer.json()["choices"][0]["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def streamed_calls(server: ServerProcess, prompt: str, **fields: Any) -> Calls:
    """Return (name, joined arguments) of each call of a streamed answer."""
    calls: dict[int, tuple[str, str]] = {}
    for chunk in server.chat_events(prompt, tools=TOOLS, **fields)[:-1]:
        for part in chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []:
            name, arguments = calls.get(part["index"], ("", ""))
            function = part["function"]
            calls[part["index"]] = (function.get("name", name), arguments + function["arguments"])
    return [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"filters": [{"field": "a", "value": [{"x": 1}]}, {}]}',
        '{"days":1,"score":2.50,"negative":-1e-3}',
        '{"city": "ß客"}',
        r'{"query": "say \"hi\"\n\\ \u00e9 }]"}',
    ],
)
def test_b46_streamed_arguments_are_byte_equal_to_the_whole(hermes_server: ServerProcess, arguments: str) -> None:
    text = hermes(named("search", arguments))
    for pieces in ([text], ["<tool_call>", *text.removeprefix("<tool_call>").partition('{"')]):
        prompt = script(*pieces)
        assert whole_calls(hermes_server, prompt) == [("search", arguments)]
        assert streamed_calls(hermes_server, prompt) == [("search", arguments)]
    for cut in cut_everywhere(text):
        assert parse_calls("hermes", cut).calls == [Call("search", arguments)]


def test_b47_a_call_without_parameters_streams_an_empty_object(hermes_server: ServerProcess) -> None:
    for text in ('{"name":"now","arguments":{}}', '{"name": "now"}'):
        prompt = script(hermes(text))
        assert whole_calls(hermes_server, prompt) == [("now", "{}")]
        assert streamed_calls(hermes_server, prompt) == [("now", "{}")]


def test_b49_neighbouring_calls_of_elements_keep_their_own_arguments(coder_server: ServerProcess) -> None:
    first = element_call_texts.coder("search", query="a < b & [{", limit="3", filters='[{"x": 1}]')
    second = element_call_texts.coder("get_weather", city="ß客", days="2")
    expected = [
        ("search", '{"query": "a < b & [{", "limit": 3, "filters": [{"x": 1}]}'),
        ("get_weather", '{"city": "ß客", "days": 2}'),
    ]
    prompt = script(f"{first}\n{second}")
    assert whole_calls(coder_server, prompt) == expected
    assert streamed_calls(coder_server, prompt) == expected
    assert all(json.loads(arguments) for _, arguments in expected)
    for cut in cut_everywhere(f"{first}\n{second}"):
        assert parse_calls("qwen3-coder", cut).calls == [Call(*call) for call in expected]


def test_b50_a_choice_is_kept_or_refused(hermes_server: ServerProcess) -> None:
    text = hermes(named("now", "{}"))
    message = hermes_server.chat(script(text), tools=TOOLS, tool_choice="none").json()["choices"][0]
    assert message["message"]["content"] == text
    assert message["finish_reason"] == "stop"
    unknown = {"type": "function", "function": {"name": "unknown"}}
    answer = hermes_server.chat(script(text), tools=TOOLS, tool_choice=unknown)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("thought", ["", "<think>I had rather talk.</think>"])
def test_b50_a_call_that_is_required_is_made(hermes_server: ServerProcess, thought: str) -> None:
    call = hermes(named("now", "{}"))
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        for wanted in (call, call[:30] + "x" + call[31:]):
            prompt = script(*thought, wanted)
            fields = {"tool_choice": choice, "max_tokens": 200, "temperature": 0, "parallel_tool_calls": False}
            assert whole_calls(hermes_server, prompt, **fields) == [("now", "{}")]
            assert streamed_calls(hermes_server, prompt, **fields) == [("now", "{}")]
            choice_ = hermes_server.chat(prompt, tools=TOOLS, **fields).json()["choices"][0]
            assert choice_["finish_reason"] == "tool_calls"
            assert choice_["message"]["content"] is None


def test_b50_no_call_within_max_tokens_is_no_tool_calls(hermes_server: ServerProcess) -> None:
    answer = hermes_server.chat(script("Talk."), tools=TOOLS, tool_choice="required", max_tokens=9).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert "tool_calls" not in answer["message"]


def test_b50_other_apis_force_calls_as_well(hermes_server: ServerProcess) -> None:
    prompt = script(hermes(named("now", "{}")))
    parameters = {"type": "object", "properties": {}}
    user = {"role": "user", "content": prompt}
    for choice in ({"type": "any"}, {"type": "tool", "name": "now"}):
        tools = [{"name": "now", "input_schema": parameters}]
        body = {"messages": [user], "max_tokens": 200, "tools": tools, "tool_choice": choice}
        answer = hermes_server.client.post("/v1/messages", json=body).json()
        assert answer["stop_reason"] == "tool_use"
        assert [(block["type"], block["name"]) for block in answer["content"]] == [("tool_use", "now")]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    for choice in ("required", {"type": "function", "name": "now"}, allowed):
        tools = [{"type": "function", "name": name, "parameters": parameters} for name in ("now", "later")]
        body = {"input": prompt, "tools": tools, "tool_choice": choice}
        answer = hermes_server.client.post("/v1/responses", json=body).json()
        assert [item.get("name") for item in answer["output"]] == ["now"], answer


def test_b50_a_strict_tool_binds_calls_of_free_will(hermes_server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
    wanted = "Well. " + hermes(named("f", '{"n":2}'))
    message = hermes_server.chat(script(wanted), tools=tools, temperature=0).json()["choices"][0]["message"]
    assert message["content"] == "Well."
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"n": 1}]
    assert hermes_server.chat(script("Talk."), tools=tools).json()["choices"][0]["message"]["content"] == "Talk."


def test_a_thinking_budget_ends_the_thinking(hermes_server: ServerProcess) -> None:
    prompt = script(*"<think>", *"abcdefgh", *"answer")
    for fields in ({"thinking_budget": 3}, {"reasoning": {"max_tokens": 3}}, {"thinking": {"budget_tokens": 3}}):
        message = hermes_server.chat(prompt, temperature=0, **fields).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "abc"
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 60}
    thinking = {"type": "enabled", "budget_tokens": 3}
    answer = hermes_server.client.post("/v1/messages", json={**body, "thinking": thinking}).json()
    assert answer["content"][0] == {"type": "thinking", "thinking": "abc", "signature": ""}


@pytest.mark.parametrize(("limit", "reason"), [(None, "stop"), (50, "length")])
def test_b52_broken_arguments_are_kept_as_text(hermes_server: ServerProcess, limit: int | None, reason: str) -> None:
    prompt = script('<tool_call>{"name":"now","arguments":{"a":' + "1" * 40 * (limit is not None))
    expected = '{"a":' + "1" * (0 if limit is None else limit - len('<tool_call>{"name":"now","arguments":{"a":'))
    answer = hermes_server.chat(prompt, tools=TOOLS, max_tokens=limit)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["finish_reason"] == reason
    assert whole_calls(hermes_server, prompt, max_tokens=limit) == [("now", expected)]
    assert streamed_calls(hermes_server, prompt, max_tokens=limit) == [("now", expected)]


def test_b54_an_argument_of_200_kb_is_parsed() -> None:
    for content in ("x" * 200_000, '\\"' * 100_000, "{[" * 100_000):
        arguments = f'{{"query": "{content}"}}'
        text = hermes(named("search", arguments))
        for pieces in ([text], list(text)):
            assert parse_calls("hermes", pieces).calls == [Call("search", arguments)]


def test_b55_a_plain_answer_has_no_tool_calls(hermes_server: ServerProcess) -> None:
    assert "tool_calls" not in hermes_server.chat(script("Hello"), tools=TOOLS).text
    assert "tool_calls" not in str(hermes_server.chat_events(script("Hello"), tools=TOOLS))
