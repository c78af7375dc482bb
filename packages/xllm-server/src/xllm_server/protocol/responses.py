"""Bodies of /v1/responses, OpenAI's newer API, and what they mean as a chat. Knows nothing of streams or of what is kept."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.as_chat import chat_request
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.engine_request import EngineRequest, Int64

CHAT_NAMES = {"max_completion_tokens": "max_output_tokens", "messages": "input", "response_format": "text.format"}
"""Field of a chat -> the same here, for the errors that name them."""
_UNSERVED = ("background", "conversation", "prompt", "top_logprobs", "max_tool_calls", "context_management")


class ResponsesRequest(EngineRequest, kw_only=True):
    """Body of a request. `input` is a text or a list of items: messages, function calls and their outputs, reasoning."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    """A system message before everything else; not carried over by `previous_response_id`."""
    max_output_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    """Goes on from an answer that this server still keeps."""
    store: bool | None = None
    """Keep the answer in memory for `previous_response_id`; true when left out."""
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    """`effort` goes to the chat template, `max_tokens` bounds the thinking."""
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    """Accepted and not read."""
    truncation: str | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: Any = None
    max_tool_calls: Any = None
    context_management: Any = None

    def messages(self) -> list[dict[str, Any]]:
        """Return `input` as a chat's messages.

        Raises:
            InvalidRequest: an item is of a kind that is not served.
        """
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for index, item in enumerate(self.input):
            _add_item(messages, item, f"input[{index}]")
        return messages

    def to_chat(self, earlier: list[dict[str, Any]]) -> ChatCompletionRequest:
        """Return the chat request that means the same, after `earlier` messages.

        Raises:
            InvalidRequest: it is not served; `param` names the field as this API spells it.
        """
        self.check_engine_fields()
        for name in _UNSERVED:
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported by this server: leave it out.", name)
        if self.truncation not in (None, "disabled"):
            raise InvalidRequest("truncation can only be disabled: prompts are never cut.", "truncation")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        content = {
            "messages": [*system, *earlier, *self.messages()],
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "parallel_tool_calls": self.parallel_tool_calls,
            "tools": None if not self.tools else [_chat_tool(t, f"tools[{i}]") for i, t in enumerate(self.tools)],
            "tool_choice": _chat_tool_choice(self.tool_choice),
            "reasoning": self.reasoning,
            "response_format": _chat_format((self.text or {}).get("format")),
        }
        return chat_request(self, content, CHAT_NAMES)


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    match item.get("type", "message"):
        case "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant_turn(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        case "reasoning":
            parts = item.get("content") or []
            text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
            messages.append({"role": "assistant", "reasoning_content": text})
        case kind:
            raise InvalidRequest(f"{place} is of type {str(kind)[:50]!r}, which is not served.", f"{place}.type")


def _assistant_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's turn that a call belongs to: the last one, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _chat_tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:50]
        raise InvalidRequest(f"{place} is of type {kind!r}; only function tools are served.", f"{place}.type")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _chat_tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _chat_function(choice)
    tools = choice.get("tools")
    allowed = {
        "mode": choice.get("mode"),
        "tools": [_chat_function(tool) for tool in tools if isinstance(tool, dict)]
        if isinstance(tools, list)
        else tools,
    }
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _chat_function(named: dict[str, Any]) -> dict[str, Any]:
    return {"type": named.get("type"), "function": {"name": named.get("name")}}


def _chat_format(given: Any) -> Any:
    """Return the chat's `response_format`: a schema lies one level deeper there."""
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseAnswer(msgspec.Struct, kw_only=True):
    """Body of an answer, and of the events that show it as a whole."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
