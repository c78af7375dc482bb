"""Collects what a tool-call parser finds. Knows no format."""

from __future__ import annotations

from collections.abc import Callable

from xllm_server.parsers.tool_call.interface import ToolCallDelta, ToolCallParse


class Emission:
    """Content and calls since the last `take`.

    White space right before a call is markup and dropped, as is white space that ends an answer behind a call. So trailing
    white space of the content waits until it is known what follows.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._content: list[str] = []
        self._space: list[str] = []
        self._is_after_call = False
        self._calls: list[ToolCallDelta] = []
        self._num_calls = 0
        self._has_arguments = False

    def content(self, text: str) -> None:
        """Add text for the reader."""
        visible = text.rstrip()
        if visible:
            self._content += [*self._space, visible]
            self._space = [text[len(visible) :]]
            self._is_after_call = False
        elif text:
            self._space.append(text)

    def start_call(self, name: str, call_id: str | None = None) -> None:
        """Begin the next call; without an id it gets a fresh one."""
        self._space.clear()
        self._is_after_call = True
        self._calls.append(ToolCallDelta(self._num_calls, call_id or self._new_id(), name))
        self._num_calls += 1
        self._has_arguments = False

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was started last."""
        if not text:
            return
        self._has_arguments = True
        index = self._num_calls - 1
        if self._calls and self._calls[-1].index == index:
            self._calls[-1].arguments += text
        else:
            self._calls.append(ToolCallDelta(index, arguments=text))

    def end_call(self) -> None:
        """End a call: one without arguments gets an empty object."""
        if not self._has_arguments:
            self.arguments("{}")

    def end(self) -> None:
        """Release white space that ends the answer, unless a call came right before it."""
        if not self._is_after_call:
            self._content += self._space
        self._space.clear()

    def take(self) -> ToolCallParse:
        """Return what was collected, and begin anew."""
        parse = ToolCallParse("".join(self._content), self._calls)
        self._content, self._calls = [], []
        return parse
