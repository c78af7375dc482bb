"""Bodies of /v1/messages, Anthropic's API, and what they mean as a chat. Knows nothing of templates or of streams."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.as_chat import chat_request
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.engine_request import EngineRequest, Int32, Int64

Content = str | list[dict[str, Any]]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
CHAT_NAMES = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens"}
"""Field of a chat -> the same in a message request, for the errors that name them."""


class InputMessage(msgspec.Struct):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Content


class CountTokensRequest(EngineRequest, kw_only=True):
    """Body of /v1/messages/count_tokens, and what all of these bodies share."""

    messages: list[InputMessage]
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    """`type` (enabled, disabled or adaptive) becomes the chat template's enable_thinking; `budget_tokens` ends a thinking
    that takes longer."""

    def chat_content(self) -> dict[str, Any]:
        """Return the body of the chat request that means the same.

        Raises:
            InvalidRequest: a block or a tool is of a kind that is not served.
        """
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system, "system")})
        for index, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages[{index}]")
        chat: dict[str, Any] = {"messages": messages}
        if self.tools:
            chat["tools"] = [_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools)]
        if self.tool_choice is not None:
            chat |= _chat_tool_choice(self.tool_choice)
        if self.thinking is not None:
            chat["thinking"] = self.thinking
        return chat

    def to_chat(self) -> ChatCompletionRequest:
        """Return the chat request that means the same.

        Raises:
            InvalidRequest: it is not served; `param` names the field as this API spells it.
        """
        self.check_engine_fields()
        return chat_request(self, self.chat_content(), CHAT_NAMES)


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: Int64
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    ignore_eos: bool | None = None
    metadata: dict[str, Any] | None = None
    """Accepted and not read."""

    def chat_content(self) -> dict[str, Any]:
        """Return the body of the chat request that means the same; raises as `CountTokensRequest` does."""
        chat = super().chat_content()
        chat["max_completion_tokens"] = self.max_tokens
        for name in ("temperature", "top_p", "top_k", "ignore_eos"):
            chat[name] = getattr(self, name)
        chat["stop"] = self.stop_sequences
        return chat


def _text(content: Content, place: str) -> str | list[dict[str, Any]]:
    """Return content made of text blocks as a chat's content."""
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": _block_text(block, f"{place}[{i}]")} for i, block in enumerate(content)]


def _block_text(block: dict[str, Any], place: str) -> str:
    if block.get("type") != "text":
        kind = str(block.get("type"))[:50]
        raise InvalidRequest(f"{place} is a block of type {kind!r}, which this model does not take.", place)
    return _string(block, "text", place)


def _string(block: dict[str, Any], name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{place}.{name} must be a string.", f"{place}.{name}")
    return value


def _chat_messages(message: InputMessage, place: str) -> list[dict[str, Any]]:
    """Return the chat messages that one turn becomes: results of tools are turns of their own, and come first."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    turn: dict[str, Any] = {"role": message.role}
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        at = f"{place}.content[{index}]"
        match block.get("type"):
            case "tool_result" if message.role == "user":
                content = block.get("content") or ""
                if not isinstance(content, str | list) or not all(isinstance(part, dict | str) for part in content):
                    raise InvalidRequest(f"{at}.content must be a string or a list of blocks.", f"{at}.content")
                result = _text(content, f"{at}.content")
                results.append({"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": result})
            case "tool_use" if message.role == "assistant":
                turn.setdefault("tool_calls", []).append(_chat_tool_call(block, at))
            case "thinking" if message.role == "assistant":
                turn["reasoning_content"] = turn.get("reasoning_content", "") + _string(block, "thinking", at)
            case "image" if message.role == "user":
                parts.append(block)  # whether the model sees, and what the source may be, its master knows
            case "redacted_thinking" if message.role == "assistant":
                pass
            case _:
                parts.append({"type": "text", "text": _block_text(block, at)})
    if parts:
        turn["content"] = parts
    return [*results, turn] if parts or len(turn) > 1 or not results else results


def _chat_tool_call(block: dict[str, Any], place: str) -> dict[str, Any]:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    function = {"name": _string(block, "name", place), "arguments": arguments}
    return {"id": _string(block, "id", place), "type": "function", "function": function}


def _chat_tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(f"{place} is of type {str(kind)[:50]!r}; only tools of your own are served.", place)
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    chat: dict[str, Any] = {}
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        raise InvalidRequest("tool_choice.type is one of auto, any, tool, none.", "tool_choice.type")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


class InputUsage(msgspec.Struct):
    """Token counts; `input_tokens` leaves out those that the prefix cache held."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    """Body of an answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: InputUsage
