"""Follows one JSON value in a stream to its end, without building it. Knows nothing of what the value is for.

The text is passed on as it is, so that malformed values survive. Depth is a counter: nesting costs no stack.
"""

from __future__ import annotations

from functools import lru_cache

import orjson

from xllm_server.parsers.text_scanner import Tags, TextScanner

WHITESPACE = frozenset(" \t\r\n")
_OPENING = frozenset("{[")


@lru_cache(maxsize=64)
def _tags(stop: str) -> tuple[Tags, Tags, Tags]:
    """Return what matters (between strings, inside a string, inside a number or word)."""
    stops = (stop,) if stop else ()
    in_string_stops = (f"\n{stop}",) if stop else ()
    between = Tags('"', "{", "}", "[", "]", *stops)
    return between, Tags('"', "\\", *in_string_stops), Tags(",", "}", "]", ":", " ", "\t", "\r", "\n", '"', *stops)


class JsonValue:
    """Reads one value; `stop` is a tag that ends a malformed one.

    The tag counts between strings, where valid JSON cannot hold it, and inside a string after a bare line break, which
    valid JSON cannot hold either. It is left unread.
    """

    __slots__ = ("_between", "_depth", "_in_string", "_is_escape", "_is_in_string", "_kind", "_scalar", "is_done")

    def __init__(self, stop: str = "") -> None:
        self._between, self._in_string, self._scalar = _tags(stop)
        self._kind = ""
        self._depth = 0
        self._is_in_string = False
        self._is_escape = False
        self.is_done = False

    @property
    def kind(self) -> str:
        """The value's first character; nothing before it has come."""
        return self._kind

    def read(self, text: TextScanner) -> str:
        """Return more of the value; sets `is_done` at its end. White space before it is dropped."""
        if not self._kind:
            text.take_while(WHITESPACE)
            self._kind = text.peek()
            if not self._kind:
                return ""
        if self._kind != '"' and self._kind not in _OPENING:
            return self._read_scalar(text)
        pieces: list[str] = []
        while not self.is_done and self._read_piece(text, pieces):
            pass
        return "".join(pieces)

    def _read_scalar(self, text: TextScanner) -> str:
        piece, tag = text.take_until(self._scalar)
        if tag is not None:
            text.put_back(tag)
            self.is_done = True
        return piece

    def _read_piece(self, text: TextScanner, pieces: list[str]) -> bool:
        """Read to the next character that matters; False when more text is needed."""
        if self._is_escape:
            escaped = text.take(1)
            pieces.append(escaped)
            self._is_escape = not escaped
            return bool(escaped)
        piece, tag = text.take_until(self._in_string if self._is_in_string else self._between)
        pieces.append(piece)
        if tag is None:
            return False
        if len(tag) > 1:
            text.put_back(tag)
            self.is_done = True
            return True
        pieces.append(tag)
        self._follow(tag)
        return True

    def _follow(self, character: str) -> None:
        if character == "\\":
            self._is_escape = True
        elif character == '"':
            self._is_in_string = not self._is_in_string
        else:
            self._depth += 1 if character in _OPENING else -1
        self.is_done = self._depth <= 0 and not self._is_in_string


def string_content(text: str) -> str:
    """Return what a JSON string says; of a malformed one, the text between the quotes."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, str) else text.removeprefix('"').removesuffix('"')
