"""Reasoning and tool calls of one answer, parsed one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parser_driving import TOOLS, Call, cut_everywhere
from support.tool_call_texts import WEATHER, harmony, hermes, kimi, named
from xllm_server.parsers.answer import AnswerParser
from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

WEATHER_CALL = Call("get_weather", WEATHER)
NOW = Call("now", "{}")
GOLDEN = [
    (
        "think",
        "hermes",
        f"<think>\nHm.\n</think>\n\n{hermes(named('get_weather', WEATHER))}",
        "Hm.",
        "",
        [WEATHER_CALL],
    ),
    ("think", "hermes", "<think>Call <tool_call>?</think>No.", "Call <tool_call>?", "No.", []),
    (
        "kimi-k2",
        "kimi-k2",
        f"<think>Hm. {kimi(('functions.now:0', '{}'))}",
        "Hm. ",
        "",
        [NOW],
    ),
    (
        "harmony",
        "harmony",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{harmony('get_weather', WEATHER)}",
        "Hm.",
        "",
        [WEATHER_CALL],
    ),
    (
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{{}}<|call|>"
        f"<|start|>assistant{harmony('get_weather', WEATHER, '')}",
        "Hm.",
        "I look.",
        [NOW, WEATHER_CALL],
    ),
    ("harmony", "harmony", "<|channel|>final<|message|>Done.", "", "Done.", []),
]


def parse(reasoning: str, tool_call: str, pieces: Sequence[str], max_calls: int | None = None) -> tuple[Any, ...]:
    """Return (reasoning, content, calls, whether it ends with a call), joined."""
    tool_call_parser = TOOL_CALL_PARSERS.load(tool_call)(TOOLS)
    reasoning_parser = REASONING_PARSERS.load(reasoning)(ReasoningStart())
    parser = AnswerParser(reasoning_parser, tool_call_parser, max_calls=max_calls)
    thought, content, calls = "", "", []
    pieces = pieces or [""]
    for number, piece in enumerate(pieces, 1):
        delta = parser.feed(piece, is_last=number == len(pieces))
        thought += delta.reasoning
        content += delta.content
        assert len({call.index for call in delta.calls}) == len(delta.calls)
        for call in delta.calls:
            if call.name is not None:
                calls.append(Call(call.name, call.arguments))
            else:
                calls[call.index] = Call(calls[call.index].name, calls[call.index].arguments + call.arguments)
    return thought, content, calls, parser.ends_with_call


@pytest.mark.parametrize(("reasoning", "tool_call", "text", "thought", "content", "calls"), GOLDEN)
def test_every_cut_gives_the_whole(
    reasoning: str, tool_call: str, text: str, thought: str, content: str, calls: list[Call]
) -> None:
    expected = (thought, content, calls, bool(calls))
    for pieces in [[text], *cut_everywhere(text)]:
        assert parse(reasoning, tool_call, pieces) == expected, pieces


MARKS = ["<|start|>", "assistant", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", " to=functions.now", "analysis"]
MARKS += ["final", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "now"', "}", "\n", "a", "<|", "<"]


@pytest.mark.parametrize("names", [("harmony", "harmony"), ("think", "hermes")])
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_cuts_change_nothing(names: tuple[str, str], data: st.DataObject) -> None:
    text = data.draw(st.lists(st.sampled_from(MARKS), max_size=30).map("".join))
    cuts = sorted(
        {cut % (len(text) + 1) for cut in data.draw(st.lists(st.integers(0, 999), max_size=9))} | {0, len(text)}
    )
    pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    whole = parse(*names, [text])
    assert parse(*names, pieces) == whole
    assert parse(*names, list(text)) == whole


def test_calls_beyond_the_limit_are_dropped() -> None:
    text = hermes(named("now", "{}"), named("get_weather", WEATHER), named("get_weather", '{"a'))
    for pieces in cut_everywhere(text):
        assert parse("think", "hermes", pieces, max_calls=1) == ("", "", [NOW], True)


@pytest.mark.parametrize(("arguments", "ends"), [(WEATHER, True), ('{"city": "Ber', False), ("", False)])
def test_a_cut_call_is_no_end(arguments: str, ends: bool) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}'
    assert parse("think", "hermes", [text])[3] is ends
    assert parse("think", "hermes", ["Hi"])[3] is False
