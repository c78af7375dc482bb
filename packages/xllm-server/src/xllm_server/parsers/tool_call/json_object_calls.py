"""The part that parsers of calls written as JSON objects share: how an object is read. Knows no marks around objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from xllm_server.parsers.tool_call.interface import Tool, new_call_id
from xllm_server.parsers.tool_call.json_call import JsonCallReader, Progress
from xllm_server.parsers.tool_call.state_machine import ToolCallStateMachine


class JsonObjectCalls(ToolCallStateMachine):
    """A parser whose calls are objects that a `JsonCallReader` reads; subclasses write the states around them.

    `stop` is a tag that ends a malformed object; `names`, where given, are the only ones that make an object a call.
    """

    stop: ClassVar[str] = ""

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        new_id: Callable[[], str] = new_call_id,
        *,
        names: frozenset[str] | None = None,
    ) -> None:
        super().__init__(tools, new_id)
        self._names = names
        self._call = self._reader()

    @abstractmethod
    def after_object(self) -> bool:
        """Read on after an object, which may have been broken off."""

    def at_end(self) -> None:
        """Complete a call whose text ended early; what never became one is content."""
        if self._state == self._read_object:
            self._call.end()
        super().at_end()

    def _begin_object(self, read: str) -> None:
        """Go on with an object; `read` is the text before it that is content if it turns out to be no call."""
        self._text.record(read)
        self._call = self._reader()
        self._state = self._read_object

    def _reader(self) -> JsonCallReader:
        return JsonCallReader(self._text, self._found, stop=self.stop, names=self._names)

    def _read_object(self) -> bool:
        progress = self._call.read()
        if progress is Progress.WAITING:
            return False
        if progress is Progress.BROKEN and not self._call.is_started:
            return self._give_up_call()
        if progress is Progress.BROKEN:
            self._call.end()
        self._state = self.after_object
        return True
