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
    refused: list[Any] = [
        "required",
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "unknown"}},
    ]
    for choice in refused:
        answer = hermes_server.chat(script(text), tools=TOOLS, tool_choice=choice)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tool_choice"


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
