"""What types a tool's parameters have, and how a parameter written as text becomes JSON. Knows no format."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson

from xllm_server.parsers.tool_call.interface import Tool

STRING = frozenset({"string"})
ANYTHING: frozenset[str] = frozenset()
_MAX_SCHEMA_DEPTH = 8
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling, which models fall into."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class ArgumentTypes:
    """The JSON types of the parameters of a request's tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """Return the types that a parameter may have; empty when anything goes or nothing is known."""
        root = self._parameters.get(function)
        properties = root.get("properties") if isinstance(root, dict) else None
        schema = properties.get(parameter) if isinstance(properties, dict) else None
        return _types_of(schema, root, _MAX_SCHEMA_DEPTH)


def _types_of(schema: Any, root: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth == 0:
        return ANYTHING
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(item for item in declared if isinstance(item, str))
    if isinstance(schema.get("$ref"), str):
        return _types_of(_resolve(schema["$ref"], root), root, depth - 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]]
        return frozenset(json_type(value) for value in values)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            members = [_types_of(member, root, depth - 1) for member in schema[word][:64]]
            return frozenset().union(*members) if all(members) else ANYTHING
    if isinstance(schema.get("allOf"), list):
        members = [types for member in schema["allOf"][:64] if (types := _types_of(member, root, depth - 1))]
        return members[0] if members else ANYTHING
    return frozenset({"object"}) if "properties" in schema else ANYTHING


def _resolve(reference: str, root: Any) -> Any:
    """Return what a reference within the tool's own schema points at."""
    target = root
    for part in reference.removeprefix("#").split("/")[1:]:
        target = target.get(part) if isinstance(target, dict) else None
    return target


def json_type(value: Any) -> str:
    """Return the JSON Schema type of a parsed value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def escape(text: str) -> str:
    """Return `text` as it stands between the quotes of a JSON string; character by character, so it can be cut."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quote(text: str) -> str:
    """Return `text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def to_json_text(value: Any) -> str:
    """Return a parsed value as JSON, as `json.dumps` writes it."""
    return json.dumps(value, ensure_ascii=False)


def to_json(text: str, types: frozenset[str]) -> str:
    """Return a parameter's text as JSON of one of `types`.

    Text that is JSON, numbers too large for a float included, stays as it is, unless the parameter may be a string and the
    JSON is of none of the other types. What is no JSON becomes a string.
    """
    candidate = text.strip()
    candidate = _WORDS.get(candidate, candidate)
    try:
        value = orjson.loads(candidate)
    except orjson.JSONDecodeError:
        is_huge = _NUMBER.fullmatch(candidate) and types and "string" not in types
        return candidate if is_huge else quote(text)
    kind = json_type(value)
    if "string" in types and (kind == "string" or not types & {kind, "number" if kind == "integer" else kind}):
        return quote(text)
    return candidate
