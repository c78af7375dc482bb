"""What a JSON Schema may hold before anybody compiles it. Knows nothing of grammars.

JSON Schema lets keywords that nobody knows pass in silence. Here a keyword is enforced, a mere remark, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from xllm_framework.errors import InvalidRequest

MAX_DEPTH = 96
"""Levels of objects and lists inside each other, the schema's own included."""
MAX_SCHEMAS = 4096
MAX_PROPERTIES = 512
"""Of one object: the grammar of optional ones grows with their square."""
MAX_ENUM_VALUES = 4096
"""Over the whole schema."""

ENFORCED = frozenset(
    [
        "type",
        "enum",
        "const",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "$defs",
        "definitions",
        "$id",
        "$anchor",
        "$schema",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ]
)
REMARKS = frozenset(
    [
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "discriminator",
        "contentEncoding",
        "contentMediaType",
    ]
)
_LISTS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_TABLES_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "additionalProperties"})


class Subschema(NamedTuple):
    """A schema inside another, and where."""

    path: str
    content: dict[str, Any]


def read_schema(text: str, param: str) -> dict[str, Any]:
    """Return the checked schema of `text`. Time is linear in its length.

    Raises:
        InvalidRequest: not a JSON object, too deep or too large, or a keyword that is not enforced; `param` names the field.
    """
    schema = _read(text, param)
    for path, content in walk(schema):
        for keyword in content:
            if not _is_known(keyword):
                raise InvalidRequest(f"{param}: keyword {keyword[:100]!r} at {path} is not supported.", param)
    return schema


def relaxed_schema(text: str, param: str) -> dict[str, Any]:
    """Return the schema of `text` without the keywords that are not enforced.

    Raises:
        InvalidRequest: not a JSON object, too deep or too large; `param` names the field.
    """
    schema = _read(text, param)
    for _, content in walk(schema):
        for keyword in [keyword for keyword in content if not _is_known(keyword)]:
            del content[keyword]
    return schema


def _is_known(keyword: str) -> bool:
    is_extension = keyword.startswith("x-") and keyword != "x-guidance"
    return keyword in ENFORCED or keyword in REMARKS or is_extension


def _read(text: str, param: str) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is no JSON: {error}.", param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param} must hold a JSON Schema that is an object.", param)
    if _depth_exceeds(schema, MAX_DEPTH):
        raise InvalidRequest(f"{param} is nested deeper than {MAX_DEPTH} levels.", param)
    num_enum_values = 0
    for num_schemas, (_, content) in enumerate(walk(schema), 1):
        values = content.get("enum")
        num_enum_values += len(values) if isinstance(values, list) else 0
        properties = content.get("properties")
        if num_schemas > MAX_SCHEMAS:
            raise InvalidRequest(f"{param} holds more than {MAX_SCHEMAS} schemas.", param)
        if num_enum_values > MAX_ENUM_VALUES:
            raise InvalidRequest(f"{param} holds more than {MAX_ENUM_VALUES} values of enum.", param)
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            raise InvalidRequest(f"{param} has an object of more than {MAX_PROPERTIES} properties.", param)
    return schema


def walk(schema: dict[str, Any]) -> Iterator[Subschema]:
    """Yield `schema` and every schema in it, except those that are true or false."""
    pending = [Subschema("#", schema)]
    while pending:
        subschema = pending.pop()
        yield subschema
        for keyword, value in subschema.content.items():
            path = f"{subschema.path}/{keyword}"
            if keyword in _TABLES_OF_SCHEMAS and isinstance(value, dict):
                inner: list[tuple[object, Any]] = list(value.items())
            elif keyword in _LISTS_OF_SCHEMAS and isinstance(value, list):
                inner = list(enumerate(value))
            elif keyword in _SCHEMAS:
                inner = [("", value)]
            else:
                continue
            pending += [Subschema(f"{path}/{name}", item) for name, item in inner if isinstance(item, dict)]


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True
