"""Brings chat messages into the one shape that templates are written for. Knows nothing of templates or of HTTP.

The rules:
- content that is null or missing becomes an empty string; a list of text parts becomes one string, joined with newlines;
- a tool call's arguments, JSON in a string, become an object; empty ones {}; what is no JSON stays a string;
- `reasoning` is also offered as `reasoning_content`, which is what templates read;
- the role `developer` becomes `system`, unless the template knows that role;
- messages keep their order: whether a later system message is allowed is the template's decision.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from xllm_framework.errors import InvalidRequest

MAX_MESSAGES = 16_384
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kind of a content part -> its field that holds the text."""


def normalise_messages(
    messages: Sequence[Any], *, knows_developer_role: bool, media_kinds: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return fresh messages by the rules above; the given ones are not changed.

    Content with parts of `media_kinds`, such as image, stays a list: of those, and of text parts. With text among the kinds
    all content is a list, for templates that know nothing else.

    Raises:
        InvalidRequest: no messages or too many, or one of a wrong shape; names it by its index.
    """
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages holds {len(messages)} messages, more than the {MAX_MESSAGES} allowed.", param="messages"
        )
    return [
        _normalise(message, f"messages[{index}]", knows_developer_role, media_kinds)
        for index, message in enumerate(messages)
    ]


def _normalise(message: Any, place: str, knows_developer_role: bool, media_kinds: Collection[str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{place} must be an object.", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{place}.role must be a non-empty string.", param="messages")
    result = {**message, "content": _content(message.get("content"), place, media_kinds)}
    if role == "developer" and not knows_developer_role:
        result["role"] = "system"
    if "reasoning" in message and "reasoning_content" not in message:
        result["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls") is None:
        result.pop("tool_calls", None)
    else:
        result["tool_calls"] = _tool_calls(message["tool_calls"], place)
    return result


def _content(content: Any, place: str, media_kinds: Collection[str]) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if "text" in media_kinds else content
    if not isinstance(content, list):
        raise InvalidRequest(f"{place}.content must be a string or a list of text parts.", param="messages")
    is_media = [isinstance(part, dict) and part.get("type") in media_kinds for part in content]
    if any(is_media):
        return [
            part
            if is_medium and part["type"] != "text"
            else {"type": "text", "text": _part_text(part, f"{place}.content[{index}]")}
            for index, (part, is_medium) in enumerate(zip(content, is_media, strict=True))
        ]
    return "\n".join(_part_text(part, f"{place}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{place} is of type {kind!r}; this model takes parts of type text only.", param="messages"
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.{_TEXT_PARTS[kind]} must be a string.", param="messages")
    return text


def _tool_calls(tool_calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, list) or not all(isinstance(call, dict) for call in tool_calls):
        raise InvalidRequest(f"{place}.tool_calls must be a list of objects.", param="messages")
    return [_tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(tool_calls)]


def _tool_call(call: dict[str, Any], place: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{place}.function must be an object.", param="messages")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
