"""Bodies of /v1/chat/completions. Knows nothing of templates: messages leave as plain dictionaries."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_server.protocol.engine_request import Int64
from xllm_server.protocol.generation import GenerationRequest
from xllm_server.protocol.tools import (
    NamedToolChoice,
    ToolCall,
    ToolCallChunk,
    ToolChoice,
    ToolDefinition,
    check_tools,
    chosen_names,
    must_call,
)
from xllm_server.protocol.usage import Usage

MAX_TOP_LOGPROBS = 128
_RESERVED_TEMPLATE_NAMES = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"}
)
"""Names that the template gets from elsewhere, or that must never come from a request."""


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation. Only shapes are checked here; the template's side knows what content may hold."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


TokenLimit = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class ReasoningOptions(msgspec.Struct):
    """How much the model should think, as some gateways spell it."""

    effort: str | None = None
    """The same as `reasoning_effort`."""
    max_tokens: TokenLimit | None = None
    """The same as `thinking_budget`."""


class ThinkingOptions(msgspec.Struct):
    """How much the model should think, in Anthropic's words."""

    type: Literal["enabled", "disabled", "adaptive"] = "enabled"
    """Given to the chat template as `enable_thinking`, unless adaptive."""
    budget_tokens: TokenLimit | None = None
    """As `thinking_budget`, but of no consequence where the model is not known to think."""


class ThinkingLimit(NamedTuple):
    """How long a request lets the model think, and the field that says so."""

    max_tokens: int
    param: str
    is_wish: bool
    """Whether it is of no consequence for a model that is not known to think."""


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Body of a chat request. `max_tokens` left out means as many tokens as the context holds."""

    messages: list[Message]
    max_completion_tokens: Int64 | None = None
    """OpenAI's newer name of max_tokens; goes before it when both are given."""
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    tools: list[ToolDefinition] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """auto when left out; none keeps the tools from the model, required and a name make it call."""
    parallel_tool_calls: bool | None = None
    """False takes only the first call of an answer."""
    thinking_budget: TokenLimit | None = None
    """How many tokens the model may think; then its thinking is ended for it. So are the fields below."""
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, as `{"enable_thinking": false}`."""
    reasoning_effort: str | None = None
    """Given to the chat template under this name."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the assistant's turn; true when left out, unless the final message is continued."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the answer continues it."""
    add_special_tokens: bool | None = None
    """Only false: the chat template writes the special tokens."""

    def check(self) -> None:
        """Check what types cannot say.

        Raises:
            InvalidRequest: `param` names the field.
        """
        self.check_generation()
        if not self.messages:
            raise InvalidRequest("messages must hold at least one message.", "messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", "top_logprobs")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}.", "top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other.", "add_generation_prompt"
            )
        if self.add_special_tokens:
            raise InvalidRequest("A chat's special tokens come from its template alone.", "add_special_tokens")
        check_tools(self.tools or [], self.tool_choice)
        for name in self.chat_template_kwargs or ():
            if name in _RESERVED_TEMPLATE_NAMES:
                raise InvalidRequest(f"chat_template_kwargs must not set {name}.", "chat_template_kwargs")

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as dictionaries, without the fields that are null."""
        messages: list[dict[str, Any]] = msgspec.to_builtins(self.messages)
        return messages

    def offered_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the model is shown, as a chat template sees them."""
        return [] if self.tool_choice == "none" else [tool.to_template() for tool in self.tools or ()]

    def callable_tools(self) -> list[dict[str, Any]]:
        """Return those of the tools that the choice allows."""
        chosen = chosen_names(self.tool_choice)
        return [tool for tool in self.offered_tools() if chosen is None or tool["function"]["name"] in chosen]

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call of a tool."""
        return must_call(self.tool_choice)

    @property
    def limits_calls(self) -> bool:
        """Whether only some tools may be called, or those that may must be called by their schemas."""
        return chosen_names(self.tool_choice) is not None or any(tool.function.strict for tool in self.tools or ())

    @property
    def max_tool_calls(self) -> int | None:
        """How many calls the answer may hold, if limited: a function that is asked for by name is called once."""
        return 1 if self.parallel_tool_calls is False or isinstance(self.tool_choice, NamedToolChoice) else None

    @property
    def thinking_limit(self) -> ThinkingLimit | None:
        """How long the model may think, if limited."""
        limits = (
            (self.thinking_budget, "thinking_budget", False),
            (None if self.reasoning is None else self.reasoning.max_tokens, "reasoning.max_tokens", False),
            (None if self.thinking is None else self.thinking.budget_tokens, "thinking.budget_tokens", True),
        )
        found = [ThinkingLimit(limit, param, is_wish) for limit, param, is_wish in limits if limit is not None]
        return min(found, default=None)

    @property
    def is_thinking_disabled(self) -> bool:
        """Whether the request asks for no reasoning, by the names that chat templates use."""
        kwargs = self.template_kwargs()
        return kwargs.get("enable_thinking") is False or kwargs.get("thinking") is False

    def template_kwargs(self) -> dict[str, Any]:
        """Return the variables for the chat template."""
        kwargs = dict(self.chat_template_kwargs or {})
        effort = self.reasoning_effort or (self.reasoning and self.reasoning.effort)
        if effort is not None:
            kwargs.setdefault("reasoning_effort", effort)
        if self.thinking is not None and self.thinking.type != "adaptive":
            kwargs.setdefault("enable_thinking", self.thinking.type == "enabled")
        return kwargs

    def to_sampling(self, *, keeps_special_tokens: bool = False) -> SamplingParams:
        """Return the sampling options; `keeps_special_tokens` is for parsers that read them, whatever the request says.

        Raises:
            InvalidRequest: a value is out of range; `param` names the field as the request spelled it.
        """
        is_new_name = self.max_completion_tokens is not None
        try:
            params = self.sampling(
                max_tokens=self.max_completion_tokens if is_new_name else self.max_tokens,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            )
        except InvalidRequest as error:
            if error.param == "max_tokens" and is_new_name:
                raise InvalidRequest(
                    error.message.replace("max_tokens", "max_completion_tokens"), "max_completion_tokens"
                ) from None
            raise
        return msgspec.structs.replace(params, skip_special_tokens=False) if keeps_special_tokens else params


class TopLogprob(msgspec.Struct):
    """A candidate token at one position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobContent(msgspec.Struct):
    """A token of the answer with its log-probability; `bytes` of all tokens together are the text's UTF-8."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a choice."""

    content: list[TokenLogprobContent]
    refusal: None = None


class AnswerMessage(msgspec.Struct):
    """The assistant's turn; content is null when there are only tool calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One finished answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Body of a chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the assistant's turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallChunk] | None = None


class ChunkChoice(msgspec.Struct):
    """What a chunk adds to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
