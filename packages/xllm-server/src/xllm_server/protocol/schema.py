"""The request types in the OpenAPI document. Knows nothing of routes; runs only when someone asks for the document."""

from __future__ import annotations

from typing import Any

import msgspec

_REFERENCE = "#/components/schemas/{name}"


def json_body(request_type: type[msgspec.Struct], *, is_required: bool = True) -> dict[str, Any]:
    """Return the part of a route's description that says its body is JSON of `request_type`."""
    reference = {"$ref": _REFERENCE.format(name=request_type.__name__)}
    return {"requestBody": {"required": is_required, "content": {"application/json": {"schema": reference}}}}


def component_schemas(request_types: list[type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the JSON schemas of `request_types` and of all they refer to, by name."""
    _, components = msgspec.json.schema_components(request_types, ref_template=_REFERENCE)
    return components
