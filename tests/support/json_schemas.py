"""Forty JSON schemas of the kinds that clients send."""

from __future__ import annotations

from typing import Any


def _object(properties: dict[str, Any], *, required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False, **more}


_TEXT = {"type": "string", "maxLength": 12}
_TREE = {
    "$defs": {
        "node": _object({"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
    }
}
_LIST = {"$defs": {"t": _object({"children": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 3}})}}

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "array", "items": {"type": "integer"}},
    {"type": ["string", "null"]},
    {"enum": ["red", "green", 3, None, True]},
    {"enum": ["größe", "世界", "🦊", 'a"b\\c']},
    {"const": {"a": [1, 2]}},
    {"type": "integer", "minimum": -5, "maximum": 17},
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "integer"}, _TEXT], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, "maxItems": 3},
    _object({"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}}),
    _object({"a": _TEXT, "b": _TEXT, "c": _TEXT}, required=["b"]),
    _object({}),
    _object({"städte": _TEXT, "名前": _TEXT, 'quo"te': {"type": "null"}}),
    _object({"outer": _object({"middle": _object({"inner": _object({"x": {"type": "number"}})})})}),
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^s_": _TEXT}, "additionalProperties": False},
    _TREE | {"$ref": "#/$defs/node"},
    _LIST | {"$ref": "#/$defs/t"},
    _object({"self": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    {"anyOf": [_object({"kind": {"const": "cat"}, "lives": {"type": "integer"}}), _object({"kind": {"const": "dog"}})]},
    {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    _object(
        {"status": {"enum": ["on", "off"]}, "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2}}
    ),
    _object(
        {"point": {"$ref": "#/$defs/point"}},
        **{"$defs": {"point": _object({"x": {"type": "number"}, "y": {"type": "number"}})}},
    ),
    _object(
        {"steps": {"type": "array", "items": _object({"text": _TEXT, "is_done": {"type": "boolean"}}), "maxItems": 3}},
        title="Plan",
    ),
]
