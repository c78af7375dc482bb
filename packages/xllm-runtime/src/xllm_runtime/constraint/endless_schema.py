"""Finds schemas of which no finite value exists, because each value must hold another of its kind. Knows no grammars.

A schema is endable if some value of it ends. Starting from none, schemas are marked endable whose needs are, until no
more are found. What is not looked into (references to elsewhere, say) counts as endable.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from xllm_runtime.constraint.json_schema import walk

MAX_ROUNDS = 64
"""Each round finds all that needs one reference more; schemas of longer chains are given the benefit of the doubt."""


def is_endless(schema: dict[str, Any]) -> bool:
    """Whether no value of `schema`, which `read_schema` has checked, is finite."""
    nodes = [subschema.content for subschema in walk(schema)][::-1]
    endable: set[int] = set()
    for _ in range(MAX_ROUNDS):
        found = [node for node in nodes if id(node) not in endable and _ends(node, schema, endable)]
        if not found:
            return id(schema) not in endable
        endable.update(map(id, found))
    return False


def _ends(node: dict[str, Any], root: dict[str, Any], endable: set[int]) -> bool:
    def ends(value: Any) -> bool:
        return not isinstance(value, dict) or id(value) in endable

    reference = node.get("$ref")
    if isinstance(reference, str) and not ends(_resolve(reference, root)):
        return False
    if not all(map(ends, _list(node.get("allOf")))):
        return False
    for keyword in ("anyOf", "oneOf"):
        choices = _list(node.get(keyword))
        if choices and not any(map(ends, choices)):
            return False
    if node.get("type") == "object":
        properties = node.get("properties")
        needed = _list(node.get("required"))
        return not isinstance(properties, dict) or all(
            ends(properties.get(name)) for name in needed if isinstance(name, str)
        )
    if node.get("type") == "array":
        num_needed = node.get("minItems", 0)
        if not isinstance(num_needed, int):
            return True
        first = _list(node.get("prefixItems"))
        return all(map(ends, first[:num_needed])) and (num_needed <= len(first) or ends(node.get("items")))
    return True


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    """Return what a reference inside the document points to, None where it does not."""
    if not reference.startswith("#"):
        return None
    value: Any = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
