"""What a parameter written as text becomes, by the tool's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xllm_server.parsers.tool_call.argument_types import ArgumentTypes, to_json

DEEP: dict[str, Any] = {"type": "string"}
for _ in range(200):
    DEEP = {"anyOf": [DEEP]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, None]}, {"integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"oneOf": [{"type": "string"}, {}]}, set()),
        ({"allOf": [{"description": "x"}, {"type": "number"}]}, {"number"}),
        ({"$ref": "#/$defs/text"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/nowhere/at/all"}, set()),
        ({"$ref": "https://example.org/x"}, set()),
        ({"properties": {}}, {"object"}),
        ({"type": 7}, set()),
        ({}, set()),
        ("string", set()),
        (DEEP, set()),
    ],
)
def test_types_of_a_parameter(schema: Any, types: set[str]) -> None:
    definitions = {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert ArgumentTypes(tools).of("f", "x") == types


@pytest.mark.parametrize("parameters", [None, {}, {"properties": None}, {"properties": []}, []])
def test_nothing_known_is_anything(parameters: Any) -> None:
    types = ArgumentTypes([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert types.of("f", "x") == types.of("g", "x") == frozenset()


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("7", {"integer"}, "7"),
        (" 7\n", {"integer"}, "7"),
        ("7", {"string"}, '"7"'),
        ("7", {"string", "integer"}, "7"),
        ("7", {"string", "number"}, "7"),
        ("7.0", {"string", "integer"}, '"7.0"'),
        ("7", {"string", "null"}, '"7"'),
        ("null", {"string", "null"}, "null"),
        ("None", {"null"}, "null"),
        ("True", {"boolean"}, "true"),
        ("True", {"string"}, '"True"'),
        ("NaN", {"number"}, '"NaN"'),
        ("123456789012345678901234567890", {"integer"}, "123456789012345678901234567890"),
        ('{"a": 1.50}', {"object"}, '{"a": 1.50}'),
        ('{"a": ', {"object"}, '"{\\"a\\": "'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
        ("a b", set(), '"a b"'),
        ("[1]", set(), "[1]"),
        ("", {"integer"}, '""'),
        ("Straße 客", set(), '"Straße 客"'),
    ],
)
def test_text_becomes_json(text: str, types: set[str], expected: str) -> None:
    assert to_json(text, frozenset(types)) == expected
    json.loads(expected)
