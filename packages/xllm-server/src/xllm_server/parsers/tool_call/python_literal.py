"""Turns one Python literal into JSON while it streams. Knows nothing of calls.

Written as `json.dumps` would: ", " and ": " between items, characters as they are. Depth is a list, not a call stack.
"""

from __future__ import annotations

import re

import orjson

from xllm_server.parsers.text_scanner import TextScanner
from xllm_server.parsers.tool_call.argument_types import escape, quote

_CLOSERS = {"[": "]", "{": "}", "(": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_ESCAPES |= {character: character for character in "\\'\""}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_STRING_MARKS = re.compile(r"""[\\'"]""")
_WORD_END = re.compile(r"""[\s"'(),\[\]{}:]""")


class PythonLiteral:
    """Reads one value, up to the comma or the bracket that ends it, which is left unread."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._quote = ""
        self._escape = ""
        self._word = ""
        self._separator = ""
        self.is_done = False

    def read(self, text: TextScanner) -> str:
        """Return more of the JSON; sets `is_done` at the end."""
        pieces: list[str] = []
        while not self.is_done and not text.is_empty:
            if self._escape:
                pieces.append(self._read_escape(text))
            elif self._quote:
                pieces.append(self._read_string(text))
            else:
                pieces.append(self._read_plain(text))
        return "".join(pieces)

    def end(self) -> str:
        """Return what was held back; the text has ended inside the value."""
        return self._end_word()

    def _read_string(self, text: TextScanner) -> str:
        piece = escape(text.take_before(_STRING_MARKS))
        mark = text.take(1)
        if mark == "\\":
            self._escape = mark
        elif mark == self._quote:
            self._quote = ""
            piece += '"'
        else:
            piece += escape(mark)
        return piece

    def _read_escape(self, text: TextScanner) -> str:
        character = text.take(1)
        kind = self._escape[1:2] or character
        num_digits = _HEX_LENGTHS.get(kind, 0)
        if num_digits == 0:
            self._escape = ""
            return escape(_ESCAPES.get(kind, f"\\{kind}"))
        if len(self._escape) > 1 and character not in _HEX_DIGITS:
            text.put_back(character)
            return self._end_escape()
        self._escape += character
        return self._end_escape() if len(self._escape) == 2 + num_digits else ""

    def _end_escape(self) -> str:
        written, self._escape = self._escape, ""
        kind, digits = written[1], written[2:]
        if len(digits) < _HEX_LENGTHS[kind] or int(digits, 16) > 0x10FFFF:
            return escape(written)
        code = int(digits, 16)
        return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else escape(chr(code))

    def _read_plain(self, text: TextScanner) -> str:
        self._word += text.take_before(_WORD_END)
        character = text.peek()
        if not character:
            return ""
        word = self._end_word()
        if character in ",)]}" and not self._closers:
            self.is_done = True
            return word
        text.take(1)
        return word + self._follow(character)

    def _follow(self, character: str) -> str:
        if character in "'\"":
            self._quote = character
            return self._take_separator() + '"'
        if character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
            return self._take_separator() + ("[" if character == "(" else character)
        if character in ")]}":
            self._separator = ""  # a comma before a closing bracket means nothing in Python, and is wrong in JSON
            return self._closers.pop()
        if character in ",:":
            self._separator = f"{character} "
        return ""

    def _end_word(self) -> str:
        word, self._word = self._word, ""
        return self._take_separator() + _word_as_json(word) if word else ""

    def _take_separator(self) -> str:
        separator, self._separator = self._separator, ""
        return separator


def _word_as_json(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    try:
        orjson.loads(word)
    except orjson.JSONDecodeError:
        return quote(word)
    return word
