"""The JSON of one answer of the Responses API, whole or as events. Knows nothing of prompts or of what is kept.

An answer is a list of items: reasoning, one message with one text, function calls. Each event carries its number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from xllm_framework.errors import XLLMError
from xllm_framework.request import FinishReason, RequestOutput, SequenceOutput
from xllm_server.api_service.answer_blocks import (
    AnswerBlocks,
    Block,
    BlockEnded,
    BlockEvent,
    BlockGrew,
    BlockKind,
    BlockOpened,
)
from xllm_server.api_service.chat_rendering import AnswerParsing
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.parsers.answer import AnswerDelta
from xllm_server.protocol.responses import ResponseAnswer, ResponsesRequest, ResponseUsage
from xllm_server.sse import named_event

OnAnswer = Callable[[ResponseAnswer, list[dict[str, Any]]], None]
"""Takes a finished answer, and the assistant's turn in it as chat messages."""
_EVENT_STEMS = {
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.TEXT: "response.output_text",
    BlockKind.TOOL_CALL: "response.function_call_arguments",
}


class ResponsesRendering:
    """JSON of one answer; `on_answer` gets it when it is complete."""

    def __init__(
        self, body: ResponsesRequest, answer_id: str, model: str, parsing: AnswerParsing, on_answer: OnAnswer
    ) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._parser = parsing.parser()
        self._counter = parsing.token_counter()
        self._on_answer = on_answer
        self._blocks = AnswerBlocks()
        self._number = 0
        self._is_cut = False

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the events of what came."""
        events: list[bytes] = []
        if self._number == 0:
            begun = self._answer("in_progress", None)
            events += [self._event(kind, response=begun) for kind in ("response.created", "response.in_progress")]
        for _, output in outputs:
            for sequence in output.outputs:
                for event in self._feed(sequence):
                    events += self._block_events(event)
        return b"".join(events)

    def end(self, generation: Generation) -> bytes:
        """Return the end of the last item and of the response."""
        events = [item for event in self._blocks.end() for item in self._block_events(event)]
        answer = self._finished(generation)
        events.append(self._event(f"response.{answer.status}", response=answer))
        return b"".join(events)

    def failure(self, error: XLLMError) -> bytes:
        """Return the event that ends a stream which failed."""
        answer = self._answer("failed", None)
        answer.error = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=answer)

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the whole answer."""
        for _ in self._feed(results[0].outputs[0]):
            pass
        return self._finished(generation)

    def _feed(self, sequence: SequenceOutput) -> Iterator[BlockEvent]:
        is_last = sequence.finish_reason is not None
        self._is_cut = sequence.finish_reason is FinishReason.LENGTH
        if self._counter is not None:
            self._counter.add(sequence.token_ids)
        if self._parser is None:
            yield from self._blocks.feed(AnswerDelta(content=sequence.text))
        else:
            yield from self._blocks.feed(self._parser.feed(sequence.text, is_last=is_last))

    def _finished(self, generation: Generation) -> ResponseAnswer:
        usage = generation.usage
        num_reasoning = 0 if self._counter is None else self._counter.num_tokens
        answer = self._answer(
            "incomplete" if self._is_cut else "completed",
            ResponseUsage(
                usage.prompt_tokens,
                {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
                usage.completion_tokens,
                {"reasoning_tokens": num_reasoning},
                usage.total_tokens,
            ),
        )
        if self._is_cut:
            answer.incomplete_details = {"reason": "max_output_tokens"}
        answer.output = [self._item(block, "completed") for block in self._blocks.blocks]
        self._on_answer(answer, [self._turn()])
        return answer

    def _turn(self) -> dict[str, Any]:
        """Return the answer as the assistant's turn of a chat."""
        texts = {kind: "".join(b.text for b in self._blocks.blocks if b.kind is kind) for kind in BlockKind}
        turn: dict[str, Any] = {"role": "assistant", "content": texts[BlockKind.TEXT]}
        calls = [
            {"id": block.call_id, "type": "function", "function": {"name": block.name, "arguments": block.text}}
            for block in self._blocks.blocks
            if block.kind is BlockKind.TOOL_CALL
        ]
        return turn | {"tool_calls": calls} if calls else turn

    def _answer(self, status: Any, usage: ResponseUsage | None) -> ResponseAnswer:
        body = self._body
        return ResponseAnswer(
            id=self._id,
            created_at=self._created,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self._model,
            output=[],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning={"effort": (body.reasoning or {}).get("effort"), "summary": None},
            store=body.store is not False,
            temperature=1.0 if body.temperature is None else body.temperature,
            text=body.text or {"format": {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_p=1.0 if body.top_p is None else body.top_p,
            usage=usage,
        )

    def _block_events(self, event: BlockEvent) -> list[bytes]:
        block = event.block
        at: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        stem = _EVENT_STEMS[block.kind]
        if block.kind is not BlockKind.TOOL_CALL:
            at["content_index"] = 0
        if isinstance(event, BlockGrew):
            if block.kind is BlockKind.TEXT:
                at["logprobs"] = []
            return [self._event(f"{stem}.delta", delta=event.text, **at)]
        item = self._item(block, "completed" if isinstance(event, BlockEnded) else "in_progress")
        if isinstance(event, BlockOpened):
            opened = [self._event("response.output_item.added", output_index=block.index, item=item)]
            if block.kind is BlockKind.TEXT:
                opened.append(self._event("response.content_part.added", part=_text_part(""), **at))
            return opened
        return [
            *self._ends(block, stem, at),
            self._event("response.output_item.done", output_index=block.index, item=item),
        ]

    def _ends(self, block: Block, stem: str, at: dict[str, Any]) -> list[bytes]:
        match block.kind:
            case BlockKind.TEXT:
                return [
                    self._event(f"{stem}.done", text=block.text, logprobs=[], **at),
                    self._event("response.content_part.done", part=_text_part(block.text), **at),
                ]
            case BlockKind.REASONING:
                return [self._event(f"{stem}.done", text=block.text, **at)]
            case BlockKind.TOOL_CALL:
                return [self._event(f"{stem}.done", name=block.name, arguments=block.text, **at)]

    def _event(self, kind: str, /, **content: Any) -> bytes:
        event = named_event(kind, {"type": kind, "sequence_number": self._number, **content})
        self._number += 1
        return event

    def _item_id(self, block: Block) -> str:
        prefix = {BlockKind.REASONING: "rs", BlockKind.TEXT: "msg", BlockKind.TOOL_CALL: "fc"}[block.kind]
        return f"{prefix}_{self._id.removeprefix('resp_')}_{block.index}"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        """Return an item: empty while in progress, whole when completed."""
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        text = block.text if status == "completed" else ""
        match block.kind:
            case BlockKind.TEXT:
                content = [_text_part(text)] if status == "completed" else []
                return item | {"type": "message", "role": "assistant", "content": content}
            case BlockKind.REASONING:
                content = [{"type": "reasoning_text", "text": text}]
                return item | {"type": "reasoning", "summary": [], "content": content}
            case BlockKind.TOOL_CALL:
                return item | {
                    "type": "function_call",
                    "call_id": block.call_id,
                    "name": block.name,
                    "arguments": text,
                }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
