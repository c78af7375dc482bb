"""Fields that would change an answer's meaning and are not served: a clear refusal, never silence.

Knows nothing of types: the check runs on parsed JSON, before the request types see it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from xllm_framework.errors import InvalidRequest


def _is_text_only(value: Any) -> bool:
    return bool(value == ["text"])


def _never(value: Any) -> bool:
    return False


_HARMLESS: dict[str, Callable[[Any], bool]] = {
    "tools": _never,
    "tool_choice": lambda value: value == "none",
    "functions": _never,
    "function_call": lambda value: value == "none",
    "modalities": _is_text_only,
    "audio": _never,
    "web_search_options": _never,
    "suffix": _never,
    "chat_template": _never,
    "beam_width": lambda value: value == 1,
    "use_beam_search": _never,
    "truncate_prompt_tokens": _never,
    "allowed_token_ids": _never,
    "bad_words": _never,
    "prompt_embeds": _never,
    "mm_processor_kwargs": _never,
}
"""Field -> whether a value asks for nothing more than is served. Null, false and empty values never do."""

_REASONS = {
    "chat_template": "templates are read at start only (--chat-template)",
}


def refuse_unsupported(content: dict[str, Any], served: Collection[str]) -> None:
    """Check a parsed body for fields that are not served; `served` are those of the request's type.

    Raises:
        InvalidRequest: one of them asks for something; `param` names it.
    """
    for name in content.keys() & _HARMLESS.keys() - set(served):
        value = content[name]
        if value and not _HARMLESS[name](value):
            reason = _REASONS.get(name, "leave it out")
            raise InvalidRequest(f"{name} is not supported by this server: {reason}.", name)
