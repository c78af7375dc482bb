"""The JSON of one answer of the Messages API, whole or as events. Knows nothing of prompts or of how models write calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import orjson

from xllm_framework.errors import XLLMError
from xllm_framework.request import FinishReason, RequestOutput, SequenceOutput
from xllm_server.api_service.answer_blocks import AnswerBlocks, Block, BlockEvent, BlockGrew, BlockKind, BlockOpened
from xllm_server.api_service.chat_rendering import AnswerParsing
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.errors import status_of
from xllm_server.parsers.answer import AnswerDelta
from xllm_server.protocol.messages import InputUsage, MessageAnswer
from xllm_server.sse import named_event

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error(error: XLLMError) -> dict[str, Any]:
    """Return Anthropic's error object."""
    kind = _ERROR_TYPES.get(status_of(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessagesRendering:
    """JSON of one answer; `answer_id` is its id."""

    def __init__(self, answer_id: str, model: str, parsing: AnswerParsing) -> None:
        self._id = answer_id
        self._model = model
        self._parser = parsing.parser()
        self._blocks = AnswerBlocks()
        self._is_begun = False
        self._stop_reason = "end_turn"
        self._stop_sequence: str | None = None

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the events of what came."""
        events: list[bytes] = []
        for _, output in outputs:
            if not self._is_begun:
                self._is_begun = True
                events.append(self._start(output))
            for sequence in output.outputs:
                events += [_block_event(event) for event in self._feed(sequence)]
        return b"".join(events)

    def end(self, generation: Generation) -> bytes:
        """Return the end of the last block and of the message."""
        events = [_block_event(event) for event in self._blocks.end()]
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        usage = _usage(generation)
        events.append(named_event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage}))
        events.append(named_event("message_stop", {"type": "message_stop"}))
        return b"".join(events)

    def failure(self, error: XLLMError) -> bytes:
        """Return the event that ends a stream which failed."""
        return named_event("error", message_error(error))

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the whole answer."""
        for _ in self._feed(results[0].outputs[0]):
            pass
        return self._answer([_content(block) for block in self._blocks.blocks], _usage(generation), self._stop_reason)

    def _start(self, output: RequestOutput) -> bytes:
        cached = output.num_cached_tokens
        usage = InputUsage(output.num_prompt_tokens - cached, 0, cached)
        return named_event("message_start", {"type": "message_start", "message": self._answer([], usage, None)})

    def _answer(self, content: list[dict[str, Any]], usage: InputUsage, stop_reason: str | None) -> MessageAnswer:
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=stop_reason,
            stop_sequence=self._stop_sequence,
            usage=usage,
        )

    def _feed(self, sequence: SequenceOutput) -> Iterator[BlockEvent]:
        is_last = sequence.finish_reason is not None
        if self._parser is None:
            yield from self._blocks.feed(AnswerDelta(content=sequence.text))
        else:
            yield from self._blocks.feed(self._parser.feed(sequence.text, is_last=is_last))
        if sequence.finish_reason is FinishReason.LENGTH:
            self._stop_reason = "max_tokens"
        elif is_last and isinstance(sequence.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", sequence.stop_reason
        elif is_last and self._blocks.has_calls:
            self._stop_reason = "tool_use"


def _usage(generation: Generation) -> InputUsage:
    usage = generation.usage
    cached = usage.prompt_tokens_details.cached_tokens
    return InputUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _content(block: Block) -> dict[str, Any]:
    """Return a block that has ended."""
    if block.kind is BlockKind.TOOL_CALL:
        return _empty(block) | {"input": _arguments(block.text)}
    return _empty(block) | {"thinking" if block.kind is BlockKind.REASONING else "text": block.text}


def _arguments(text: str) -> Any:
    """Return a call's arguments; what the model wrote may be no JSON object, and then stands as it is under one key."""
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def _empty(block: Block) -> dict[str, Any]:
    match block.kind:
        case BlockKind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        case BlockKind.TEXT:
            return {"type": "text", "text": ""}
        case BlockKind.TOOL_CALL:
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


_DELTAS = {
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.TOOL_CALL: ("input_json_delta", "partial_json"),
}
"""Kind of block -> type of its deltas, and the field that holds the new text."""


def _block_event(event: BlockEvent) -> bytes:
    index = event.block.index
    if isinstance(event, BlockOpened):
        content: dict[str, Any] = {"content_block": _empty(event.block)}
        name = "content_block_start"
    elif isinstance(event, BlockGrew):
        kind, field = _DELTAS[event.block.kind]
        content = {"delta": {"type": kind, field: event.text}}
        name = "content_block_delta"
    else:
        content = {}
        name = "content_block_stop"
    return named_event(name, {"type": name, "index": index, **content})
