"""Reads calls written as JSON objects: {"name": ..., "arguments": {...}}. Knows nothing of the marks around them.

The keys come in any order; `parameters` is another word for `arguments`. Streamed arguments are the object's own text.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from xllm_server.parsers.json_value import WHITESPACE, JsonValue, string_content
from xllm_server.parsers.text_scanner import TextScanner
from xllm_server.parsers.tool_call.emission import Emission

_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_BARE_KEYS = _ARGUMENT_KEYS | {"name", "type", "id"}
_BETWEEN = WHITESPACE | {","}


class Progress(Enum):
    """How far a call has been read."""

    WAITING = auto()
    """More text is needed."""
    DONE = auto()
    """The object has ended."""
    BROKEN = auto()
    """This is no call, or its object is malformed; when it had been started, the call is complete as far as it goes."""


class JsonCallReader:
    """Reads one object; the text must be recording, which ends where the call is started.

    `stop` is a tag that ends a malformed object. With `names`, an object counts as a call only when it holds nothing but
    a call's keys and one of these names: for formats that mark calls with nothing but a brace.
    """

    def __init__(
        self, text: TextScanner, found: Emission, *, stop: str = "", names: frozenset[str] | None = None
    ) -> None:
        self._text = text
        self._found = found
        self._stop = stop
        self._names = names
        self._step: Callable[[], Progress | None] = self._open
        self._key = ""
        self._value = JsonValue(stop)
        self._pieces: list[str] = []
        self._arguments: list[str] = []
        self._id: str | None = None
        self.is_started = False
        """Whether the call has a name, and is among what was found."""

    def read(self) -> Progress:
        """Read on."""
        while True:
            progress = self._step()
            if progress is not None:
                return progress

    def end(self) -> None:
        """Take what there is of a started call whose text ended early."""
        if not self.is_started:
            return
        if self._step == self._read_value and self._key in _ARGUMENT_KEYS:
            self._arguments += self._pieces
        self._found.arguments("".join(self._arguments))

    def _open(self) -> Progress | None:
        self._text.take_while(WHITESPACE)
        met = self._text.match("{")
        if met:
            self._step = self._next_key
            return None
        return Progress.WAITING if met is None else Progress.BROKEN

    def _next_key(self) -> Progress | None:
        self._text.take_while(_BETWEEN)
        if self._text.match("}"):
            if not self.is_started:
                return Progress.BROKEN
            self._found.end_call()
            return Progress.DONE
        if self._text.is_empty:
            return Progress.WAITING
        if self._text.peek() != '"':
            return Progress.BROKEN
        self._begin_value(self._read_key)
        return None

    def _begin_value(self, step: Callable[[], Progress | None]) -> None:
        self._value = JsonValue(self._stop)
        self._pieces = []
        self._step = step

    def _read_key(self) -> Progress | None:
        self._pieces.append(self._value.read(self._text))
        if not self._value.is_done:
            return Progress.WAITING
        self._key = string_content("".join(self._pieces))
        if self._names is not None and self._key not in _BARE_KEYS:
            return Progress.BROKEN
        self._step = self._colon
        return None

    def _colon(self) -> Progress | None:
        self._text.take_while(WHITESPACE)
        met = self._text.match(":")
        if met:
            self._begin_value(self._read_value)
            return None
        return Progress.WAITING if met is None else Progress.BROKEN

    def _read_value(self) -> Progress | None:
        piece = self._value.read(self._text)
        if self._streams_value:
            self._found.arguments(piece)
        elif self._key in _ARGUMENT_KEYS or self._key in _BARE_KEYS:
            self._pieces.append(piece)
        if not self._value.is_done:
            return Progress.WAITING
        self._step = self._next_key
        return self._accept_value("".join(self._pieces))

    @property
    def _streams_value(self) -> bool:
        return self.is_started and self._key in _ARGUMENT_KEYS and self._value.kind in ("{", "[")

    def _accept_value(self, value: str) -> Progress | None:
        if self._key == "name":
            return self._accept_name(value)
        if self._key == "id" and value.startswith('"'):
            self._id = string_content(value) or None
        elif self._key in _ARGUMENT_KEYS and not self._streams_value and value != "null":
            arguments = string_content(value) if value.startswith('"') else value
            if self.is_started:
                self._found.arguments(arguments)
            else:
                self._arguments.append(arguments)
        return None

    def _accept_name(self, value: str) -> Progress | None:
        name = string_content(value) if value.startswith('"') else ""
        if self.is_started or not name or (self._names is not None and name not in self._names):
            return Progress.BROKEN
        self._text.stop_recording()
        self._found.start_call(name, self._id)
        self.is_started = True
        self._found.arguments("".join(self._arguments))
        self._arguments = []
        return None
