"""From a `Generate` message to a prepared request of the master. Knows nothing of sockets or of outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from xllm_capi.messages import Generate
from xllm_capi.tool_chats import AnswerReaders, ToolChats, load_tool_chats
from xllm_framework.constraint import Constraint
from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster, PreparedRequest

_SAMPLING_FIELDS = frozenset(SamplingParams.__struct_fields__)


def prepare(
    master: LLMMaster, message: Generate, load_tools: Callable[[], ToolChats] | None = None
) -> tuple[PreparedRequest, AnswerReaders | None]:
    """Check `message` and make it ready for `master.submit`; return also what reads the answer of a chat with tools.

    May take long for a long text. `load_tools` is called for such a chat.

    Raises:
        XLLMError: it cannot be served; the class says why.
    """
    options: dict[str, Any] = {
        "request_id": message.request_id,
        "priority": message.priority,
        "cache_salt": message.cache_salt,
        "is_offline": message.is_offline,
    }
    sampling = sampling_params(message)
    if message.response_format_json is not None:
        _parse_json(message.response_format_json, dict[str, Any], "response_format_json")
        schema = Constraint("json_schema", message.response_format_json, "response_format_json")
        sampling = msgspec.structs.replace(sampling, constraint=schema)
    if message.prompt is not None:
        return master.prepare_completion(message.prompt, sampling, **options), None
    if message.token_ids is not None:
        return master.prepare_completion(message.token_ids, sampling, add_special_tokens=False, **options), None
    if message.tools_json is None:
        if message.tool_choice not in (None, "auto", "none"):
            raise InvalidRequest("tool_choice needs tools_json.", "tool_choice")
        return _prepare_chat(master, message, sampling, options), None
    return _prepare_tool_chat(load_tools or partial(load_tool_chats, master), message, sampling, options)


def sampling_params(message: Generate) -> SamplingParams:
    """Merge `message.options_json` over `message.sampling` and check every value.

    Raises:
        InvalidRequest: an unknown name, a wrong type, or a value out of range.
    """
    raw = bytes(message.sampling)
    if message.options_json is None:
        return _read_sampling(raw)
    given = _parse_json(message.options_json, dict[str, Any], "options_json")
    unknown = sorted(set(given) - _SAMPLING_FIELDS)
    if unknown:
        raise InvalidRequest(f"options_json holds the unknown option {unknown[0]!r}.", "options_json")
    return _convert_sampling({**_fields(raw), **given})


@lru_cache(maxsize=256)
def _read_sampling(raw: bytes) -> SamplingParams:
    """Return the options in `raw`, which are the same in most requests of a program."""
    return _convert_sampling(_fields(raw))


def _fields(raw: bytes) -> dict[str, Any]:
    return msgspec.msgpack.decode(raw, type=dict[str, Any])


def _convert_sampling(fields: dict[str, Any]) -> SamplingParams:
    try:
        return msgspec.convert(fields, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A sampling option has a wrong type: {error}.") from error


def _prepare_chat(
    master: LLMMaster, message: Generate, sampling: SamplingParams, options: dict[str, Any]
) -> PreparedRequest:
    from xllm_runtime.master import ChatInput

    chat = ChatInput(messages=_messages(message), template_kwargs=_template_kwargs(message))
    return master.prepare_chat(chat, sampling, **options)


def _prepare_tool_chat(
    load_tools: Callable[[], ToolChats], message: Generate, sampling: SamplingParams, options: dict[str, Any]
) -> tuple[PreparedRequest, AnswerReaders]:
    tools = _parse_json(message.tools_json or "", list[dict[str, Any]], "tools_json")
    messages, choice = _messages(message), message.tool_choice or "auto"
    chat = load_tools().prepare(messages, tools, choice, sampling, _template_kwargs(message), options)
    return chat.prepared, AnswerReaders(chat)


def _messages(message: Generate) -> list[dict[str, Any]]:
    """Return the chat's messages, each with a role."""
    if message.messages is not None:
        messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in message.messages]
    else:
        messages = _parse_json(message.messages_json or "", list[dict[str, Any]], "messages_json")
    for index, entry in enumerate(messages):
        if not isinstance(entry.get("role"), str):
            raise InvalidRequest(f"messages_json[{index}] has no role.", "messages_json")
    return messages


def _template_kwargs(message: Generate) -> dict[str, Any]:
    text = message.template_kwargs_json
    kwargs: dict[str, Any] = {} if text is None else _parse_json(text, dict[str, Any], "template_kwargs_json")
    return kwargs


def _parse_json(text: str, expected: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(text, type=expected)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not what it should be: {error}.", name) from error
