"""Thirty sets of tools as benchmarks of function calling have them: simple, several, nested, optional, enumerated, odd."""

from __future__ import annotations

from typing import Any

_DAY = {"type": "string", "enum": ["monday", "tuesday", "saturday"]}
_POINT = {
    "type": "object",
    "properties": {"latitude": {"type": "number"}, "longitude": {"type": "number"}},
    "required": ["latitude", "longitude"],
    "additionalProperties": False,
}
_TREE = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
    "required": ["label"],
    "additionalProperties": False,
}


def tool(name: str, required: dict[str, Any] | None = None, optional: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return a tool; a property is a JSON type or a schema."""
    properties = {**(required or {}), **(optional or {})}
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(required or {}), **more}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOL_PROMPTS: list[tuple[str, list[dict[str, Any]]]] = [
    ("What is the weather in Bonn?", [tool("get_weather", {"city": "string"})]),
    ("Factorial of five.", [tool("factorial", {"number": {"type": "integer", "minimum": 0, "maximum": 20}})]),
    ("Area of a triangle.", [tool("triangle_area", {"base": "number", "height": "number"}, {"unit": "string"})]),
    ("Is seven prime?", [tool("is_prime", {"number": "integer"}, {"explain": "boolean"})]),
    ("What time is it?", [tool("now")]),
    ("Ping it.", [{"type": "function", "function": {"name": "ping"}}]),
    (
        "Remind me.",
        [tool("remind", {"text": "string", "day": _DAY}, {"hour": {"type": "integer", "minimum": 0, "maximum": 23}})],
    ),
    ("Weather or time?", [tool("get_weather", {"city": "string"}), tool("get_time", {"zone": "string"})]),
    ("Sort these.", [tool("sort", {"numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 5}})]),
    (
        "Find words.",
        [tool("find", {"words": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}})],
    ),
    ("Where is it?", [tool("locate", {"point": _POINT})]),
    ("Draw a path.", [tool("draw", {"points": {"type": "array", "items": _POINT, "minItems": 2, "maxItems": 3}})]),
    ("Plant a tree.", [tool("plant", {"tree": {"$ref": "#/$defs/tree"}}, **{"$defs": {"tree": _TREE}})]),
    ("Maybe a name.", [tool("rename", {"name": {"type": ["string", "null"]}})]),
    ("Maybe a number.", [tool("limit", {"most": {"anyOf": [{"type": "integer"}, {"type": "null"}]}})]),
    ("All is optional.", [tool("search", None, {"query": "string", "page": "integer", "exact": "boolean"})]),
    ("Pick units.", [tool("convert", {"value": "number", "unit": {"enum": ["°C", "°F", "K"]}})]),
    ("Pick a size.", [tool("resize", {"size": {"enum": [1, 2, 4]}, "keep": {"const": True}})]),
    ("Übersetze.", [tool("übersetze", {"größe": "string"}, {"ziel": {"enum": ["日本語", "français"]}})]),
    ("Dotted names.", [tool("calendar.events-list_v2", {"day": _DAY}), tool("calendar.events", {"day": _DAY})]),
    (
        "A long signature.",
        [tool("book", {f"field_{n}": "integer" for n in range(6)}, {f"more_{n}": "string" for n in range(4)})],
    ),
    (
        "Nested objects.",
        [
            tool(
                "order",
                {
                    "item": {
                        "type": "object",
                        "properties": {"sku": {"type": "string"}, "box": _POINT},
                        "required": ["sku", "box"],
                    }
                },
            )
        ],
    ),
    (
        "A date.",
        [tool("meet", {"on": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}})],
    ),
    ("A map.", [tool("count", {"counts": {"type": "object", "additionalProperties": {"type": "integer"}}})]),
    ("Either kind.", [tool("pay", {"with": {"anyOf": [_POINT, {"type": "integer"}]}})]),
    ("A flag.", [tool("toggle", {"on": "boolean"}), tool("off"), tool("on")]),
    (
        "A list of lists.",
        [
            tool(
                "matrix",
                {
                    "rows": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
                        "maxItems": 2,
                    }
                },
            )
        ],
    ),
    (
        "Bounded.",
        [
            tool(
                "dim",
                {
                    "level": {"type": "number", "minimum": 0, "maximum": 1},
                    "steps": {"type": "integer", "multipleOf": 5, "maximum": 50, "minimum": 0},
                },
            )
        ],
    ),
    ("Nothing is known.", [tool("set_value", {"value": {}})]),
    ("Many tools.", [tool(f"tool_{number}", {"x": "integer"}, {"y": "string"}) for number in range(12)]),
]
"""(what the user says, tools)."""
