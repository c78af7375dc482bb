"""Reasoning parsers: golden outputs, cut at every place."""

from __future__ import annotations

import pytest

from support.parser_driving import cut_everywhere, parse_reasoning
from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS

NOTHING = ReasoningStart()
OPENED = ReasoningStart("<|im_start|>assistant\n<think>\n")
CLOSED = ReasoningStart("<|im_start|>assistant\n<think>\n\n</think>\n\n")
DISABLED = ReasoningStart("<|Assistant|>", is_thinking_disabled=True)

GOLDEN = [
    ("think", NOTHING, "<think>\nHm.\n\nYes.\n</think>\n\nHi", "Hm.\n\nYes.", "Hi"),
    ("think", NOTHING, "\n <think>Hm</think> Hi\n", "Hm", " Hi\n"),
    ("think", NOTHING, "<think>\n\n</think>\n\nHi", "", "Hi"),
    ("think", NOTHING, "Hi <think>no</think>", "", "Hi <think>no</think>"),
    ("think", NOTHING, "  Hi", "", "  Hi"),
    ("think", NOTHING, "", "", ""),
    ("think", NOTHING, " \n", "", " \n"),
    ("think", NOTHING, "<thinking>x</thinking>", "", "<thinking>x</thinking>"),
    ("think", NOTHING, "<thi", "", "<thi"),
    ("think", NOTHING, "<think>a <think> </thin </thinks b</think>c", "a <think> </thin </thinks b", "c"),
    ("think", NOTHING, "<think>cut </th", "cut </th", ""),
    ("think", NOTHING, "<think>Straße 客 😀</think>😀</think>", "Straße 客 😀", "😀</think>"),
    ("think", OPENED, "Hm.\n</think>\n\nHi", "Hm.", "Hi"),
    ("think", OPENED, "<think>\nHm.\n</think>\n\nHi", "Hm.", "Hi"),
    ("think", OPENED, "  indented\n", "  indented", ""),
    ("think", OPENED, "\n\n", "", ""),
    ("think", CLOSED, "Hi</think>", "", "Hi</think>"),
    ("think", CLOSED, "<think>Hm</think>Hi", "Hm", "Hi"),
    ("deepseek-r1", NOTHING, "Hm.\n</think>\n\nHi", "Hm.", "Hi"),
    ("deepseek-r1", NOTHING, "<think>\nHm.\n</think>\n\nHi", "Hm.", "Hi"),
    ("deepseek-r1", DISABLED, "Hi", "", "Hi"),
    ("deepseek-r1", CLOSED, "Hi", "", "Hi"),
    ("kimi", NOTHING, "◁think▷Hm◁/think▷Hi ◁thin", "Hm", "Hi ◁thin"),
    (
        "kimi-k2",
        OPENED,
        "Hm.\n<|tool_calls_section_begin|><|tool_call_begin|>",
        "Hm.",
        "<|tool_calls_section_begin|><|tool_call_begin|>",
    ),
    ("mistral", NOTHING, "[THINK]Hm [/THIN[/THINK]Hi", "Hm [/THIN", "Hi"),
    (
        "harmony",
        NOTHING,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "Hm.",
        "Hi",
    ),
    (
        "harmony",
        NOTHING,
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>",
        "A\nB",
        "I look.",
    ),
    (
        "harmony",
        NOTHING,
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
        "A",
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",
    ),
    ("harmony", NOTHING, "<|channel|>analysis<|message|>cut <|en", "cut <|en", ""),
    ("harmony", NOTHING, "<|channel|>analysis", "", "<|channel|>analysis"),
    ("harmony", NOTHING, "plain", "", "plain"),
]


@pytest.mark.parametrize(("name", "start", "text", "reasoning", "content"), GOLDEN)
def test_every_cut_gives_the_whole(name: str, start: ReasoningStart, text: str, reasoning: str, content: str) -> None:
    assert parse_reasoning(name, [text], start) == (reasoning, content)
    for pieces in cut_everywhere(text):
        assert parse_reasoning(name, pieces, start) == (reasoning, content), pieces


def test_text_is_held_back_only_while_it_may_become_a_tag() -> None:
    parser = REASONING_PARSERS.load("think")(OPENED)
    assert parser.feed("a <") == ("a ", "")
    assert parser.feed("b") == ("<b", "")
    assert parser.feed("</thin") == ("", "")
    assert parser.feed("g>") == ("</thing>", "")
    assert parser.feed("</think>c </thi") == ("", "c </thi")


@pytest.mark.parametrize(
    ("name", "text", "states"),
    [
        ("think", ["<think>", "a", "</think>", "b"], [True, True, False, False]),
        (
            "harmony",
            ["<|channel|>analysis<|message|>", "a", "<|end|>", "<|channel|>final<|message|>"],
            [True, True, False, False],
        ),
    ],
)
def test_it_says_whether_it_is_reasoning(name: str, text: list[str], states: list[bool]) -> None:
    parser = REASONING_PARSERS.load(name)(NOTHING)
    seen = []
    for piece in text:
        parser.feed(piece)
        seen.append(parser.is_reasoning)
    assert seen == states
