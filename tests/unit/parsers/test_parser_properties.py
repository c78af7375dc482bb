"""What holds for every parser and every text: cuts change nothing, nothing raises, hostile texts take linear work."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import element_call_texts, tool_call_texts
from support.parser_driving import parse_calls, parse_reasoning
from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

CASES = {**tool_call_texts.CASES, **element_call_texts.CASES}
TOOL_PARSERS = sorted(CASES)
MARKS = {
    "hermes": ["<tool_call>", "</tool_call>", "\n", '{"name": "now"', '"arguments": {', "}", ", ", '"', "\\"],
    "llama3-json": ["<|python_tag|>", "{", '"name"', ": ", '"now"', '"parameters": {', "}", ";", ","],
    "pythonic": [
        "<|python_start|>",
        "<|python_end|>",
        "[",
        "now",
        "(",
        "a=",
        "'",
        '"',
        "\\u",
        "\\",
        "1",
        ",",
        ")",
        "]",
        "{",
        "}",
    ],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "now", "[", "]", '{"name": "now", "arguments":', "{", "}", '"'],
    "deepseek-v3": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "\n```json\n",
        "\n```",
        "now",
    ],
    "deepseek-v31": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "now",
        "{",
    ],
    "kimi-k2": [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
        "functions.now:0",
    ],
    "harmony": [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "assistant",
        " to=functions.now",
        "analysis",
        "final",
    ],
    "qwen3-coder": [
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "search",
        ">",
        "</function>",
        "<parameter=",
        "query",
        "limit",
        "\n</parameter>",
        "\n",
    ],
    "glm45": [
        "<tool_call>",
        "</tool_call>",
        "search",
        "<arg_key>",
        "query",
        "limit",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "\n",
    ],
    "deepseek-v32": [
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        '<｜DSML｜invoke name="',
        '">',
        "</｜DSML｜invoke>",
        '<｜DSML｜parameter name="',
        '" string="true">',
        "</｜DSML｜parameter>",
        "now",
    ],
}
NOISE = ["a", " ", "<", "{", "客", "😀", "x" * 300, "1.5", "null"]


def texts(marks: list[str]) -> st.SearchStrategy[str]:
    """Return texts made of a format's marks, halves of them, and other characters."""
    halves = [mark[: len(mark) // 2] for mark in marks if len(mark) > 1]
    return st.lists(st.sampled_from([*marks, *marks, *halves, *NOISE]), max_size=30).map("".join)


def test_every_parser_is_covered() -> None:
    names = {TOOL_CALL_PARSERS.resolve(name) for name in TOOL_CALL_PARSERS.names}
    assert names == set(CASES) == set(MARKS)
    assert all(len(cases) >= 8 for cases in CASES.values())


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    """Return `text` cut at these places."""
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_cuts_change_no_tool_calls(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(MARKS[name]))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=12))
    whole = parse_calls(name, [text])
    assert parse_calls(name, list(text)) == whole
    assert parse_calls(name, pieces_of(text, cuts)) == whole


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_marks_that_follow_one_another_may_be_cut(name: str) -> None:
    for first, second, third in itertools.product(MARKS[name], repeat=3):
        text = f"{MARKS[name][0]}search{first}{second}{third}"
        assert parse_calls(name, list(text)) == parse_calls(name, [text])


@pytest.mark.parametrize("name", sorted({REASONING_PARSERS.resolve(name) for name in REASONING_PARSERS.names}))
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_cuts_change_no_reasoning(name: str, data: st.DataObject) -> None:
    marks = [*MARKS["harmony"], "<think>", "</think>", "◁think▷", "◁/think▷", "[THINK]", "[/THINK]", "\n"]
    text = data.draw(texts(marks))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=12))
    start = ReasoningStart(data.draw(st.sampled_from(["", "<think>\n", "</think>\n\n"])))
    whole = parse_reasoning(name, [text], start)
    assert parse_reasoning(name, list(text), start) == whole
    assert parse_reasoning(name, pieces_of(text, cuts), start) == whole


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "glm45", "deepseek-v32", "pythonic"])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_string_comes_through(name: str, data: st.DataObject) -> None:
    query = data.draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<\n")))
    written = {
        "hermes": tool_call_texts.hermes(tool_call_texts.named("search", json.dumps({"query": query}))),
        "qwen3-coder": element_call_texts.coder("search", query=query),
        "glm45": element_call_texts.glm47("search", query="x").replace("x</", f"{query}</"),
        "deepseek-v32": element_call_texts.dsml(element_call_texts.invoke("search", query=("true", query))),
        "pythonic": f"[search(query={query!r})]",
    }[name]
    answer = parse_calls(name, pieces_of(written, data.draw(st.lists(st.integers(0, 10_000), max_size=9))))
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("search", {"query": query})]


@pytest.mark.parametrize("name", TOOL_PARSERS)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_hostile_texts_end(name: str, is_streamed: bool) -> None:
    """200 kB (20 kB in small pieces) of every mark, and of nesting; what is not linear does not end within the limit."""
    size = 20_000 if is_streamed else 200_000
    hostile = [mark * (size // len(mark)) for mark in [*MARKS[name], "<", " ", "[", "{"]]
    hostile += [CASES[name][0][1][:40] + text for text in ("[" * size, '{"a":' * (size // 5), '"' * size)]
    for text in hostile:
        parse_calls(name, [text[begin : begin + 7] for begin in range(0, len(text), 7)] if is_streamed else [text])
