"""A field that is a text, a list of texts, token ids, or lists of such. Knows nothing of which field."""

from __future__ import annotations

from xllm_framework.errors import InvalidRequest


def texts_or_tokens(value: str | list[str | list[int] | int], name: str, limit: int) -> list[str | list[int]]:
    """Return what the field `name` holds, one by one.

    Raises:
        InvalidRequest: nothing, an empty one, more than `limit`, or texts and tokens mixed.
    """
    found: list[str | list[int]]
    if isinstance(value, str):
        found = [value]
    elif value and all(isinstance(item, int) for item in value):
        found = [[item for item in value if isinstance(item, int)]]
    elif any(isinstance(item, int) for item in value):
        raise InvalidRequest(f"{name} must not mix token ids with texts or lists.", name)
    else:
        found = [item for item in value if not isinstance(item, int)]
    if not found or not all(found):
        raise InvalidRequest(f"{name} must not be empty.", name)
    if len(found) > limit:
        raise InvalidRequest(f"{name} holds {len(found)} prompts, but at most {limit} are taken.", name)
    return found
