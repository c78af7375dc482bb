"""Splits gpt-oss' harmony text into messages by channel. Knows nothing of what channels mean to a client.

    [<|start|>assistant][ to=recipient]<|channel|>channel[ to=recipient][ <|constrain|>json]<|message|>text(<|end|>|<|call|>)

The first message's `<|start|>assistant` stands in the prompt. Text outside of messages is on no channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from xllm_framework.constraint.structure import Markup, optional
from xllm_server.parsers.text_scanner import Tags, TextScanner

START, CHANNEL, MESSAGE, CALL, END = "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>"
AGAIN = optional(Markup(f"{START}assistant"))
"""What a message begins with that does not come first."""
_FIRST = (START, CHANNEL, MESSAGE, " to=", "to=")
_OUTSIDE = Tags(START, CHANNEL)
_HEADER_END = Tags(MESSAGE, END, CALL, "<|return|>")
_BODY_END = Tags(END, CALL, "<|return|>", START, CHANNEL)
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_WORD = re.compile(r"[A-Za-z]+")


class PieceKind(Enum):
    """What a piece is."""

    OPEN = auto()
    TEXT = auto()
    CLOSE = auto()


class HarmonyPiece(NamedTuple):
    """A part of a message, in order; the markup of `OPEN` and `CLOSE` is in `text`."""

    kind: PieceKind
    channel: str
    """analysis, commentary, final or another; empty outside of messages."""
    recipient: str
    """To whom the message goes, as functions.name; mostly nobody."""
    text: str


class HarmonyMessages:
    """See the module. However the text is cut, the texts of a message's pieces join to the same."""

    def __init__(self) -> None:
        self._text = TextScanner()
        self._state: Callable[[], bool] = self._read_first
        self._pieces: list[HarmonyPiece] = []
        self.channel = ""
        """Of the message that is being read."""
        self.recipient = ""

    def feed(self, text: str) -> list[HarmonyPiece]:
        """Return the pieces that `text` completes or goes on with."""
        self._text.append(text)
        return self._run()

    def flush(self) -> list[HarmonyPiece]:
        """Return what was held back; a header that never ended is text."""
        self._text.is_ended = True
        self._run_states()
        self._add(PieceKind.TEXT, self._text.stop_recording())
        return self._take()

    def _run(self) -> list[HarmonyPiece]:
        self._run_states()
        return self._take()

    def _run_states(self) -> None:
        while self._state():
            pass

    def _take(self) -> list[HarmonyPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, kind: PieceKind, text: str) -> None:
        if text or kind is not PieceKind.TEXT:
            self._pieces.append(HarmonyPiece(kind, self.channel, self.recipient, text))

    def _read_first(self) -> bool:
        """See whether the answer begins inside a header."""
        if self._text.is_empty or self._text.may_become(_FIRST):
            return False
        is_header = self._text.starts_with(_FIRST)
        if is_header:
            self._text.record()
        self._state = self._read_header if is_header else self._read_outside
        return True

    def _read_outside(self) -> bool:
        text, tag = self._text.take_until(_OUTSIDE)
        self._add(PieceKind.TEXT, text)
        if tag is None:
            return False
        self._text.record(tag)
        self._state = self._read_header
        return True

    def _read_header(self) -> bool:
        _, tag = self._text.take_until(_HEADER_END)
        if tag is None:
            return False
        header = self._text.stop_recording()
        if tag != MESSAGE:
            self._add(PieceKind.TEXT, header)
            self._state = self._read_outside
            return True
        recipient = _RECIPIENT.search(header)
        channel = _WORD.match(header.partition(CHANNEL)[2].lstrip())
        self.channel = channel[0] if channel else ""
        self.recipient = recipient[1] if recipient else ""
        self._add(PieceKind.OPEN, header)
        self._state = self._read_body
        return True

    def _read_body(self) -> bool:
        text, tag = self._text.take_until(_BODY_END)
        self._add(PieceKind.TEXT, text)
        if tag is None:
            return False
        is_next = tag in (START, CHANNEL)
        if is_next:
            self._text.put_back(tag)
        self._add(PieceKind.CLOSE, "" if is_next else tag)
        self.channel = self.recipient = ""
        self._state = self._read_outside
        return True
