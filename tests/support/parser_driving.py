"""Feeds a text to a parser in pieces and joins what comes out. Knows no format."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS


class Call(NamedTuple):
    """One call of an answer, its argument fragments joined."""

    name: str
    arguments: str


class Answer(NamedTuple):
    """The content of an answer and its calls."""

    content: str
    calls: list[Call]


def function(name: str, **properties: Any) -> dict[str, Any]:
    """Return a tool; each property is a JSON type or a schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


TOOLS = [
    function("get_weather", city="string", days="integer", metric="boolean"),
    function(
        "search",
        query="string",
        filters="array",
        options="object",
        score="number",
        unit={"enum": ["celsius", "fahrenheit"]},
        limit={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        tag={"type": ["string", "null"]},
        node={"$ref": "#/$defs/node"},
    ),
    function("now"),
]
TOOLS[1]["function"]["parameters"]["$defs"] = {"node": {"type": "object"}}


def parse_calls(name: str, pieces: Iterable[str], tools: list[dict[str, Any]] | None = None) -> Answer:
    """Return the joined answer; checks that a call is named first and once, and that calls come in order."""
    ids = (f"id-{number}" for number in itertools.count())
    parser: Any = TOOL_CALL_PARSERS.load(name)
    parser = parser(TOOLS if tools is None else tools, new_id=lambda: next(ids))
    content, calls = "", []
    for parse in [*map(parser.feed, pieces), parser.flush()]:
        content += parse.content
        for delta in parse.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                assert delta.id
                calls.append(Call(delta.name, delta.arguments))
            else:
                assert delta.index == len(calls) - 1
                assert delta.id is None
                assert delta.arguments
                calls[-1] = Call(calls[-1].name, calls[-1].arguments + delta.arguments)
    return Answer(content, calls)


def parse_reasoning(name: str, pieces: Iterable[str], start: ReasoningStart | None = None) -> tuple[str, str]:
    """Return (reasoning, content), joined."""
    parser = REASONING_PARSERS.load(name)(start or ReasoningStart())
    parses = [*map(parser.feed, pieces), parser.flush()]
    return "".join(parse.reasoning for parse in parses), "".join(parse.content for parse in parses)


def cut_everywhere(text: str) -> list[list[str]]:
    """Return `text` cut once at every place, and into single characters."""
    return [list(text), *([text[:position], text[position:]] for position in range(1, len(text)))]
