"""Chats with tools for programs that reach the engine without HTTP: the entry point `xllm.tool_chats`.

What a chat request with tools means is decided where it is for HTTP, so that the same chat gets the same answer both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.chat import chat_input, reasoning_start
from xllm_server.api_service.constrained_chat import constrain_chat
from xllm_server.parsers.answer import AnswerParser
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.decode import convert_request

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster

PLAIN_CHOICES = ("auto", "none", "required")


class ParsedDelta(NamedTuple):
    """What a piece of an answer's text brought."""

    content: str
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None
    """With the last piece: all calls in OpenAI's shape, if there are any."""


class ToolChats:
    """Prepares chats with tools for one master."""

    def __init__(self, master: LLMMaster) -> None:
        template = "" if master.chat_template is None else master.chat_template.source
        self._master = master
        self._parsers = ModelParsers.choose(master.config.model, master.model_args.model_type, template)

    def prepare(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        tool_choice: str,
        sampling: SamplingParams,
        template_kwargs: dict[str, Any],
        options: dict[str, Any],
    ) -> ToolChat:
        """Check and tokenise a chat; `tool_choice` is auto, none, required, or the name of a tool that must be called.

        Raises:
            XLLMError: it cannot be served.
        """
        choice: Any = tool_choice
        if tool_choice not in PLAIN_CHOICES:
            choice = {"type": "function", "function": {"name": tool_choice}}
        body = convert_request(
            {
                "messages": list(messages),
                "tools": list(tools),
                "tool_choice": choice,
                "chat_template_kwargs": template_kwargs,
            },
            ChatCompletionRequest,
        )
        body.check()
        tool_call = self._parsers.tool_call if body.offered_tools() else None
        if body.offered_tools() and tool_call is None:
            raise InvalidRequest(
                "tools are not supported: it is not known how this model writes tool calls (see tool_call_parser).",
                "tools",
            )
        parsers = ModelParsers(tool_call, self._parsers.reasoning)
        sampling = constrain_chat(sampling, body, parsers.tool_call, parsers.reasoning)
        if any(parser is not None and parser.needs_special_tokens for parser in (tool_call, parsers.reasoning)):
            sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
        prepared = self._master.prepare_chat(chat_input(body), sampling, **options)
        return ToolChat(prepared, parsers, body, reasoning_start(body, prepared.prompt or ""))


@dataclass(frozen=True, slots=True)
class ToolChat:
    """A prepared chat, and how its answer is read."""

    prepared: PreparedRequest
    parsers: ModelParsers
    body: ChatCompletionRequest
    start: ReasoningStart

    def reader(self) -> AnswerReader:
        """Return a reader for one sequence of the answer."""
        tool_call, reasoning = self.parsers.tool_call, self.parsers.reasoning
        return AnswerReader(
            AnswerParser(
                None if reasoning is None else reasoning(self.start),
                None if tool_call is None else tool_call(self.body.offered_tools()),
                max_calls=self.body.max_tool_calls,
            )
        )


class AnswerReader:
    """Gathers the calls of one answer, and passes on the rest."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._calls: dict[int, dict[str, Any]] = {}

    def read(self, text: str, *, is_last: bool) -> ParsedDelta:
        """Return what `text` adds."""
        delta = self._parser.feed(text, is_last=is_last)
        for call in delta.calls:
            if call.index not in self._calls:
                function = {"name": call.name or "", "arguments": ""}
                self._calls[call.index] = {"id": call.id or "", "type": "function", "function": function}
            self._calls[call.index]["function"]["arguments"] += call.arguments
        calls = list(self._calls.values()) if is_last and self._calls else None
        return ParsedDelta(delta.content, delta.reasoning or None, calls)
