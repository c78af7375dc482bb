"""Reasoning of gpt-oss: the analysis channel. Knows nothing of tools: messages to them are content, with marks around."""

from __future__ import annotations

from typing import ClassVar

from xllm_framework.constraint import ReasoningTags
from xllm_framework.constraint.structure import Structure, sequence
from xllm_framework.errors import InvalidRequest
from xllm_server.parsers.harmony_messages import (
    AGAIN,
    CALL,
    CHANNEL,
    END,
    MESSAGE,
    START,
    HarmonyMessages,
    HarmonyPiece,
    PieceKind,
)
from xllm_server.parsers.reasoning.interface import ReasoningParse, ReasoningStart

ANALYSIS = "analysis"
FUNCTIONS = "functions."


class HarmonyReasoningParser:
    """See the module. Several messages of reasoning are joined with a line break."""

    needs_special_tokens: ClassVar[bool] = True

    @classmethod
    def tags(cls, start: ReasoningStart, *, calls_end_it: bool) -> ReasoningTags | None:
        """See `ReasoningParserFactory.tags`."""
        if start.is_continuation:
            raise InvalidRequest(
                "continue_final_message cannot be joined with a form of the answer for this model.",
                "continue_final_message",
            )
        return ReasoningTags(f"{CHANNEL}{ANALYSIS}{MESSAGE}", END, is_open=False)

    @classmethod
    def answer(cls, content: Structure) -> Structure:
        """Return a message on the final channel; see `ReasoningParserFactory.answer`."""
        return sequence(AGAIN, f"{CHANNEL}final{MESSAGE}", content)

    def __init__(self, start: ReasoningStart) -> None:
        self._messages = HarmonyMessages()
        self._has_reasoning = False

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""
        return self._messages.channel == ANALYSIS and not self._messages.recipient.startswith(FUNCTIONS)

    def feed(self, text: str) -> ReasoningParse:
        """Return what `text` adds."""
        return self._sort(self._messages.feed(text))

    def flush(self) -> ReasoningParse:
        """Return what was held back; the answer has ended."""
        return self._sort(self._messages.flush())

    def _sort(self, pieces: list[HarmonyPiece]) -> ReasoningParse:
        reasoning: list[str] = []
        content: list[str] = []
        for piece in pieces:
            if piece.recipient.startswith(FUNCTIONS):
                content.append(_marked(piece))
            elif piece.channel == ANALYSIS:
                reasoning.append(self._reasoning_of(piece))
            elif piece.kind is PieceKind.TEXT:
                content.append(piece.text)
        return ReasoningParse("".join(reasoning), "".join(content))

    def _reasoning_of(self, piece: HarmonyPiece) -> str:
        if piece.kind is PieceKind.TEXT:
            self._has_reasoning = True
            return piece.text
        return "\n" if piece.kind is PieceKind.OPEN and self._has_reasoning else ""


def _marked(piece: HarmonyPiece) -> str:
    """Return a piece of a message to a tool in the one form that can stand beside text without marks."""
    if piece.kind is PieceKind.OPEN:
        return f"{START}assistant to={piece.recipient}{CHANNEL}{piece.channel}{MESSAGE}"
    return piece.text or CALL
