"""One answer's way through its parsers: text, then reasoning, then tool calls. Knows no format and no JSON shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from xllm_server.parsers.reasoning.interface import ReasoningParse, ReasoningParser
from xllm_server.parsers.tool_call.interface import ToolCallDelta, ToolCallParse, ToolCallParser


@dataclass(slots=True)
class AnswerDelta:
    """What a piece of text brought: thought, then said, then called."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class AnswerParser:
    """Parses one answer with the parsers there are. `max_calls` is how many tool calls the client takes, if limited."""

    def __init__(
        self, reasoning: ReasoningParser | None, tool_calls: ToolCallParser | None, *, max_calls: int | None = None
    ) -> None:
        self._reasoning = reasoning
        self._tool_calls = tool_calls
        self._max_calls = max_calls
        self._last_arguments: list[str] = []

    @property
    def ends_with_call(self) -> bool:
        """Whether there are tool calls, and the last one is complete: its arguments are JSON."""
        try:
            orjson.loads("".join(self._last_arguments))
        except orjson.JSONDecodeError:
            return False
        return True

    def feed(self, text: str, *, is_last: bool) -> AnswerDelta:
        """Return what `text` adds; the last one also brings what was held back."""
        delta = AnswerDelta()
        self._add(delta, self._reasoning.feed(text) if self._reasoning is not None else ReasoningParse("", text))
        if is_last and self._reasoning is not None:
            self._add(delta, self._reasoning.flush())
        if is_last and self._tool_calls is not None:
            self._add_calls(delta, self._tool_calls.flush())
        return delta

    def _add(self, delta: AnswerDelta, parse: ReasoningParse) -> None:
        delta.reasoning += parse.reasoning
        if self._tool_calls is None:
            delta.content += parse.content
        elif parse.content:
            self._add_calls(delta, self._tool_calls.feed(parse.content))

    def _add_calls(self, delta: AnswerDelta, parse: ToolCallParse) -> None:
        delta.content += parse.content
        for call in parse.calls:
            if self._max_calls is not None and call.index >= self._max_calls:
                continue
            if call.name is not None:
                self._last_arguments = []
            self._last_arguments.append(call.arguments)
            if delta.calls and delta.calls[-1].index == call.index:
                delta.calls[-1].arguments += call.arguments
            else:
                delta.calls.append(call)
