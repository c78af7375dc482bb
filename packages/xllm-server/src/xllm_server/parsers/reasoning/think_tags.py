"""Reasoning between a pair of tags at the answer's beginning, as <think>...</think>. Knows nothing of tool calls.

Line breaks beside the tags are markup and dropped, as chat templates put them back.
"""

from __future__ import annotations

from typing import ClassVar

from xllm_framework.constraint import ReasoningTags
from xllm_framework.constraint.structure import Structure
from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.reasoning.interface import ReasoningParse, ReasoningStart
from xllm_server.parsers.text_scanner import Tags, TextScanner

_LINE_BREAKS = frozenset("\n")


class ThinkTagParser:
    """See the module. Whether the answer begins inside the tags, the prompt's end says; else the class.

    Tags inside content are text: only an answer's beginning opens reasoning.
    """

    needs_special_tokens: ClassVar[bool] = False
    open_tag: ClassVar[str] = "<think>"
    close_tag: ClassVar[str] = "</think>"
    begins_open: ClassVar[bool] = False
    """Whether an answer is reasoning from its first word where the prompt does not tell."""
    ends_before: ClassVar[tuple[str, ...]] = ()
    """Marks that end reasoning without its closing tag, and belong to the content."""

    @classmethod
    def tags(cls, start: ReasoningStart, *, calls_end_it: bool) -> ReasoningTags | None:
        """See `ReasoningParserFactory.tags`."""
        is_open = cls.begins_open and not start.is_thinking_disabled
        if start.is_continuation:
            is_open = start.prompt_end.rfind(cls.open_tag) > start.prompt_end.rfind(cls.close_tag)
            if not is_open:
                return None
        return ReasoningTags(
            cls.open_tag,
            cls.close_tag,
            is_open,
            forced_close=f"\n{cls.close_tag}\n\n",
            ends_before=cls.ends_before if calls_end_it else (),
        )

    @classmethod
    def answer(cls, content: Structure) -> Structure:
        """See `ReasoningParserFactory.answer`."""
        return content

    def __init__(self, start: ReasoningStart) -> None:
        self._text = TextScanner()
        self._text.record()
        self._end_tags = Tags(self.close_tag, *self.ends_before)
        self._breaks: list[str] = []
        self._has_text = False
        self._is_open = self._begins_inside(start)
        self._state = self._read_open_tag
        self.is_reasoning = self._is_open

    def _begins_inside(self, start: ReasoningStart) -> bool:
        if start.is_continuation:
            return start.prompt_end.rfind(self.open_tag) > start.prompt_end.rfind(self.close_tag)
        prompt_end = start.prompt_end.rstrip()
        if prompt_end.endswith((self.open_tag, self.close_tag)):
            return prompt_end.endswith(self.open_tag)
        return self.begins_open and not start.is_thinking_disabled

    def feed(self, text: str) -> ReasoningParse:
        """Return what `text` adds."""
        if self._state == self._read_content:
            return ReasoningParse("", text)
        self._text.append(text)
        return self._run()

    def flush(self) -> ReasoningParse:
        """Return what was held back; the answer has ended."""
        self._text.is_ended = True
        return self._run()

    def _run(self) -> ReasoningParse:
        reasoning: list[str] = []
        content: list[str] = []
        while self._state(reasoning, content):
            pass
        return ReasoningParse("".join(reasoning), "".join(content))

    def _read_open_tag(self, reasoning: list[str], content: list[str]) -> bool:
        """Read the opening tag, if it is there, though it may stand in the prompt already."""
        self._text.take_while(WHITESPACE)
        met = self._text.match(self.open_tag)
        if met is None:
            return False
        read = self._text.stop_recording()
        self.is_reasoning = met or self._is_open
        if self.is_reasoning:
            self._add_reasoning(reasoning, "" if met else read)
            self._state = self._read_reasoning
        else:
            content.append(read)
            self._state = self._read_content
        return True

    def _read_reasoning(self, reasoning: list[str], content: list[str]) -> bool:
        text, tag = self._text.take_until(self._end_tags)
        self._add_reasoning(reasoning, text)
        if tag is None:
            return False
        if tag != self.close_tag:
            self._text.put_back(tag)
        self.is_reasoning = False
        self._state = self._read_line_breaks
        return True

    def _add_reasoning(self, reasoning: list[str], text: str) -> None:
        """Add text without the line breaks around the whole; those at the end wait for what follows."""
        body = text.rstrip("\n")
        if not body:
            self._breaks.append(text)
            return
        if self._has_text:
            reasoning += self._breaks
        else:
            body = body.lstrip("\n")
        self._has_text = True
        self._breaks = [text[len(text.rstrip("\n")) :]]
        reasoning.append(body)

    def _read_line_breaks(self, reasoning: list[str], content: list[str]) -> bool:
        self._text.take_while(_LINE_BREAKS)
        if self._text.is_empty:
            return False
        self._state = self._read_content
        return True

    def _read_content(self, reasoning: list[str], content: list[str]) -> bool:
        content.append(self._text.take_all())
        return False


class AlwaysThinkingParser(ThinkTagParser):
    """For models that think in every answer, and whose template may have opened the tag unseen: DeepSeek R1."""

    begins_open = True


class KimiThinkParser(ThinkTagParser):
    """Kimi's first thinking models, with marks of their own."""

    open_tag = "◁think▷"
    close_tag = "◁/think▷"


class KimiK2ThinkParser(ThinkTagParser):
    """Kimi K2 Thinking and K2.5, which may go from thought to a tool call without a closing tag."""

    needs_special_tokens = True
    ends_before = ("<|tool_calls_section_begin|>",)


class MistralThinkParser(ThinkTagParser):
    """Magistral, whose marks are special tokens."""

    needs_special_tokens = True
    open_tag = "[THINK]"
    close_tag = "[/THINK]"
