"""Calls of gpt-oss: messages to functions.name. Every other message is content, without its marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from xllm_framework.constraint.structure import Choice, FreeText, Repeat, Structure, sequence
from xllm_server.parsers.harmony_messages import (
    AGAIN,
    CHANNEL,
    END,
    MESSAGE,
    START,
    HarmonyMessages,
    HarmonyPiece,
    PieceKind,
)
from xllm_server.parsers.tool_call.call_syntax import arguments_schema
from xllm_server.parsers.tool_call.emission import Emission
from xllm_server.parsers.tool_call.interface import Tool, ToolCallParse, new_call_id

FUNCTIONS = "functions."


class HarmonyToolCallParser:
    """See the module."""

    needs_special_tokens: ClassVar[bool] = True

    @classmethod
    def forced_calls(cls, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """See `ToolCallParserFactory.forced_calls`. A call ends the answer: there is one."""
        return sequence(AGAIN, _call(tools))

    @classmethod
    def free_calls(cls, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """See `ToolCallParserFactory.free_calls`. What is thought comes before."""
        preamble = sequence(f"{CHANNEL}commentary{MESSAGE}", FreeText(END), f"{START}assistant")
        last = [sequence(f"{CHANNEL}{channel}{MESSAGE}", FreeText()) for channel in ("final", "commentary")]
        return sequence(AGAIN, Repeat(preamble), Choice((*last, _call(tools))))

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        self._messages = HarmonyMessages()
        self._found = Emission(new_id)

    def feed(self, text: str) -> ToolCallParse:
        """Return what `text` adds."""
        return self._sort(self._messages.feed(text))

    def flush(self) -> ToolCallParse:
        """Return what was held back; the answer has ended."""
        pieces = self._messages.flush()
        for piece in pieces:
            self._add(piece)
        self._found.end()
        return self._found.take()

    def _sort(self, pieces: list[HarmonyPiece]) -> ToolCallParse:
        for piece in pieces:
            self._add(piece)
        return self._found.take()

    def _add(self, piece: HarmonyPiece) -> None:
        name = piece.recipient.removeprefix(FUNCTIONS)
        if not name or not piece.recipient.startswith(FUNCTIONS):
            if piece.kind is PieceKind.TEXT:
                self._found.content(piece.text)
        elif piece.kind is PieceKind.OPEN:
            self._found.start_call(name)
        elif piece.kind is PieceKind.TEXT:
            self._found.arguments(piece.text)
        else:
            self._found.end_call()


def _call(tools: Sequence[Tool]) -> Structure:
    """Return a message to one of `tools`, with the recipient in either place where models put it."""
    options = []
    for tool in tools:
        name = f"{FUNCTIONS}{tool['function']['name']}"
        arguments = sequence(f" <|constrain|>json{MESSAGE}", arguments_schema(tool))
        options += [
            sequence(f"{CHANNEL}commentary to={name}", arguments),
            sequence(f" to={name}{CHANNEL}commentary", arguments),
        ]
    return Choice(tuple(options))
