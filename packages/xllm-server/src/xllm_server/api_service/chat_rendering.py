"""The JSON of one chat answer, whole or in chunks. Knows nothing of how reasoning and tool calls are written by models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from xllm_framework.errors import XLLMError
from xllm_framework.request import FinishReason, RequestOutput, SequenceOutput
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.logprobs import LogprobsRenderer
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.parsers.answer import AnswerDelta, AnswerParser
from xllm_server.parsers.reasoning.interface import ReasoningParser
from xllm_server.parsers.reasoning.token_counter import ReasoningTokenCounter
from xllm_server.parsers.tool_call.interface import ToolCallDelta, ToolCallParser
from xllm_server.ports import Tokenizer
from xllm_server.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
)
from xllm_server.protocol.tools import FunctionCall, FunctionCallDelta, ToolCall, ToolCallChunk
from xllm_server.protocol.usage import CompletionTokensDetails, Usage
from xllm_server.sse import DONE, error_event, event


@dataclass(frozen=True, slots=True)
class AnswerParsing:
    """Makes the parsers of each choice of an answer; None where nothing is looked for."""

    tool_call: Callable[[], ToolCallParser] | None
    reasoning: Callable[[], ReasoningParser] | None
    max_calls: int | None
    """How many tool calls the client takes, if limited."""
    tokenizer: Tokenizer

    def parser(self) -> AnswerParser | None:
        """Return a fresh parser, or None when the text is the content."""
        if self.tool_call is None and self.reasoning is None:
            return None
        return AnswerParser(
            None if self.reasoning is None else self.reasoning(),
            None if self.tool_call is None else self.tool_call(),
            max_calls=self.max_calls,
        )

    def token_counter(self) -> ReasoningTokenCounter | None:
        """Return a fresh counter of reasoning tokens."""
        return None if self.reasoning is None else ReasoningTokenCounter(self.reasoning(), self.tokenizer)


class _Choice:
    """One choice while it comes: its parsers and its log-probabilities."""

    __slots__ = ("_body", "_counter", "_logprobs", "_parser")

    def __init__(self, body: ChatCompletionRequest, parsing: AnswerParsing) -> None:
        self._body = body
        self._parser = parsing.parser()
        self._counter = parsing.token_counter()
        self._logprobs = (
            LogprobsRenderer(parsing.tokenizer, skips_special=body.skip_special_tokens is not False)
            if body.logprobs
            else None
        )

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens spent on reasoning so far, where that is known."""
        return None if self._counter is None else self._counter.num_tokens

    def parse(self, sequence: SequenceOutput) -> AnswerDelta:
        """Return what an output brings."""
        if self._parser is None:
            return AnswerDelta(content=sequence.text)
        if self._counter is not None:
            self._counter.add(sequence.token_ids)
        return self._parser.feed(sequence.text, is_last=sequence.finish_reason is not None)

    def logprobs(self, sequence: SequenceOutput) -> ChatLogprobs | None:
        """Return the log-probabilities of an output's tokens, if asked for."""
        return None if self._logprobs is None else self._logprobs.chat(sequence)

    def finish_reason(self, reason: FinishReason) -> str:
        """Return the reason as clients know it: a turn that stops after its tool calls says so."""
        if reason is FinishReason.STOP and self._parser is not None and self._parser.ends_with_call:
            return "tool_calls"
        return reason.value


class ChatRendering:
    """JSON of one chat answer."""

    def __init__(self, body: ChatCompletionRequest, answer_id: str, model: str, parsing: AnswerParsing) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._parsing = parsing
        self._created = int(time.time())
        self._choices: dict[int, _Choice] = {}

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the chunks of new text: the role first, then what the text is, then the finish reason on its own."""
        chunks: list[ChunkChoice] = []
        for _, output in outputs:
            for sequence in output.outputs:
                self._add_chunks(chunks, sequence)
        return b"".join([event(self._chunk([chunk])) for chunk in chunks])

    def end(self, generation: Generation) -> bytes:
        """Return the usage chunk, when asked for, and the end mark."""
        if not self._body.includes_usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = self._usage(generation)
        return event(chunk) + DONE

    def failure(self, error: XLLMError) -> bytes:
        """Return the event that ends a stream which failed."""
        return error_event(error)

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the whole answer."""
        choices = [self._whole_choice(sequence) for sequence in results[0].outputs]
        return ChatCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=self._usage(generation)
        )

    def _whole_choice(self, sequence: SequenceOutput) -> ChatChoice:
        choice = self._choices[sequence.index] = _Choice(self._body, self._parsing)
        delta = choice.parse(sequence)
        return ChatChoice(
            index=sequence.index,
            message=_message(delta),
            finish_reason=choice.finish_reason(sequence.finish_reason or FinishReason.STOP),
            logprobs=choice.logprobs(sequence),
        )

    def _add_chunks(self, chunks: list[ChunkChoice], sequence: SequenceOutput) -> None:
        index = sequence.index
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(self._body, self._parsing)
            chunks.append(ChunkChoice(index, Delta(role="assistant", content="")))
        logprobs = choice.logprobs(sequence)
        deltas = _deltas(choice.parse(sequence))
        if not deltas and logprobs is not None and logprobs.content:
            deltas.append(Delta(content=""))
        for delta in deltas:
            chunks.append(ChunkChoice(index, delta, logprobs))
            logprobs = None
        if sequence.finish_reason is not None:
            chunks.append(ChunkChoice(index, Delta(), None, choice.finish_reason(sequence.finish_reason)))

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        chunk = ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=choices)
        if self._body.includes_usage:
            chunk.usage = None
        return chunk

    def _usage(self, generation: Generation) -> Usage:
        usage = generation.usage
        counts = [choice.num_reasoning_tokens for choice in self._choices.values()]
        known = [count for count in counts if count is not None]
        if known:
            usage.completion_tokens_details = CompletionTokensDetails(sum(known))
        return usage


def _message(answer: AnswerDelta) -> AnswerMessage:
    message = AnswerMessage(answer.content or (None if answer.calls else ""))
    if answer.reasoning:
        message.reasoning_content = answer.reasoning
    if answer.calls:
        message.tool_calls = [
            ToolCall(call.id or "", FunctionCall(call.name or "", call.arguments)) for call in answer.calls
        ]
    return message


def _deltas(answer: AnswerDelta) -> list[Delta]:
    """Return what one output adds, each kind on its own."""
    deltas = []
    if answer.reasoning:
        deltas.append(Delta(reasoning_content=answer.reasoning))
    if answer.content:
        deltas.append(Delta(content=answer.content))
    if answer.calls:
        deltas.append(Delta(tool_calls=[_call_chunk(call) for call in answer.calls]))
    return deltas


def _call_chunk(call: ToolCallDelta) -> ToolCallChunk:
    function = FunctionCallDelta(call.name, call.arguments)
    return ToolCallChunk(call.index, call.id, function, None if call.name is None else "function")
