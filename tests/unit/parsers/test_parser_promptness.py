"""Nothing is held back longer than it must be: text, arguments and names come while the answer is being written."""

from __future__ import annotations

from typing import Any

import pytest

from support import element_call_texts, tool_call_texts
from support.parser_driving import TOOLS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

QUERY = "abc " * 50
ARGUMENTS = f'{{"query": "{QUERY}"}}'
TEXTS = {
    "hermes": tool_call_texts.hermes(tool_call_texts.named("search", ARGUMENTS)),
    "llama3-json": tool_call_texts.llama("search", ARGUMENTS),
    "pythonic": f"[search(query='{QUERY}')]",
    "mistral": tool_call_texts.mistral(("search", ARGUMENTS)),
    "deepseek-v3": tool_call_texts.deepseek(tool_call_texts.fenced("search", ARGUMENTS)),
    "deepseek-v31": tool_call_texts.deepseek(f"search<｜tool▁sep｜>{ARGUMENTS}"),
    "kimi-k2": tool_call_texts.kimi(("functions.search:0", ARGUMENTS)),
    "harmony": tool_call_texts.harmony("search", ARGUMENTS),
    "qwen3-coder": element_call_texts.coder("search", query=QUERY),
    "glm45": element_call_texts.glm47("search", query=QUERY),
    "deepseek-v32": element_call_texts.dsml(element_call_texts.invoke("search", query=("true", QUERY))),
}


def fresh(name: str) -> Any:
    """Return a parser."""
    return TOOL_CALL_PARSERS.load(name)(TOOLS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_arguments_come_character_by_character(name: str) -> None:
    parser = fresh(name)
    arguments = ""
    for position, character in enumerate(TEXTS[name], 1):
        parse = parser.feed(character)
        arguments += "".join(call.arguments for call in parse.calls)
        read = TEXTS[name][:position]
        if "query" in read and QUERY not in read and "abc" in read:
            written = read[read.index("abc") :]
            assert arguments.endswith(written), (written, arguments)
    assert arguments == ARGUMENTS


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_name_comes_before_the_arguments_are_complete(name: str) -> None:
    half = TEXTS[name][: TEXTS[name].index("abc") + 10]
    (call,) = fresh(name).feed(half).calls
    assert call.name == "search"
    assert call.arguments.startswith('{"query": "abc')


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_text_comes_at_once(name: str) -> None:
    parser = fresh(name)
    text = "What holds 2 < 3 [and] {so} on? "
    seen = ""
    for position, character in enumerate(text, 1):
        seen += parser.feed(character).content
        held = text[:position][len(seen) :]
        assert len(held) <= 2, held
    assert seen == text.rstrip()
