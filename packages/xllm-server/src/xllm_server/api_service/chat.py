"""Chat: from messages to a prompt, and to what renders its answer. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from xllm_framework.errors import InvalidRequest
from xllm_runtime.master import ChatInput, PreparedRequest
from xllm_server.api_service.chat_rendering import AnswerParsing, ChatRendering
from xllm_server.api_service.constrained_chat import constrain_chat, continuation_start
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.parsers.reasoning.interface import ReasoningParserFactory, ReasoningStart
from xllm_server.parsers.tool_call.interface import Tool, ToolCallParserFactory
from xllm_server.protocol.chat import ChatCompletionRequest

PROMPT_END_CHARACTERS = 256
"""How much of a prompt's end reasoning parsers see."""


class ChatService(GenerationService[ChatCompletionRequest]):
    """Serves /v1/chat/completions."""

    body_type = ChatCompletionRequest
    id_prefix = "chatcmpl-"

    def check(self, body: ChatCompletionRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        tools = body.offered_tools()
        parsers = self._parsers(tools)
        params = body.to_sampling(
            keeps_special_tokens=any(parser is not None and parser.needs_special_tokens for parser in parsers)
        )
        params = constrain_chat(params, body, *parsers)

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            return [self._state.master.prepare_chat(chat_input(body), params, **body.options(request_id))]

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: ChatCompletionRequest, answer_id: str, generation: Generation) -> ChatRendering:
        return ChatRendering(body, answer_id, self._state.master.model_name, self.parsing(body, generation))

    def parsing(self, body: ChatCompletionRequest, generation: Generation) -> AnswerParsing:
        """Return what tells reasoning, text and tool calls of the answer to `body` apart."""
        tool_call, reasoning = self._parsers(body.offered_tools())
        start = reasoning_start(body, generation.prepared[0].prompt or "")
        return AnswerParsing(
            tool_call=None if tool_call is None else partial(tool_call, body.offered_tools()),
            reasoning=None if reasoning is None else partial(reasoning, start),
            max_calls=body.max_tool_calls,
            tokenizer=self._state.master.tokenizer,
        )

    def _parsers(self, tools: Sequence[Tool]) -> tuple[ToolCallParserFactory | None, ReasoningParserFactory | None]:
        """Return the parsers that an answer to a request with `tools` goes through.

        Raises:
            InvalidRequest: there are tools and no parser for calls.
        """
        parsers = self._state.parsers
        if tools and parsers.tool_call is None:
            raise InvalidRequest(
                "tools are not supported: it is not known how this model writes tool calls (see --tool-call-parser).",
                "tools",
            )
        return (parsers.tool_call if tools else None), parsers.reasoning


def chat_input(body: ChatCompletionRequest) -> ChatInput:
    """Return what the chat template gets of `body`."""
    is_continued = bool(body.continue_final_message)
    return ChatInput(
        messages=body.template_messages(),
        tools=body.offered_tools() or None,
        add_generation_prompt=not is_continued if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=is_continued,
        template_kwargs=body.template_kwargs(),
    )


def reasoning_start(body: ChatCompletionRequest, prompt: str) -> ReasoningStart:
    """Return what is known of the answer before its first token."""
    start = continuation_start(body)
    return start if start.is_continuation else replace(start, prompt_end=prompt[-PROMPT_END_CHARACTERS:])
