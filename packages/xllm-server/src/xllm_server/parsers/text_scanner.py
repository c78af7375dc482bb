"""Reads a text that arrives in pieces. Knows nothing of what the text means.

What is read does not depend on where the pieces were cut: text is held back only while it may still become one of the
tags that are looked for. Each character is looked at a bounded number of times, however the pieces fall.
"""

from __future__ import annotations

import re


class Tags:
    """A set of literal strings, ready to be searched for. None of them may begin with another of them.

    The search is an alternation of literals: it cannot backtrack.
    """

    __slots__ = ("_head", "_longest", "_pattern", "_tags")

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._longest = max(map(len, tags))
        self._head = re.compile("|".join({re.escape(tag[0]) for tag in tags}))
        self._pattern = re.compile("|".join(map(re.escape, tags)))

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        """Return where the first tag at or after `start` begins and ends, if there is one."""
        match = self._pattern.search(text, start)
        return None if match is None else match.span()

    def held_from(self, text: str, start: int) -> int:
        """Return where the end of `text` begins to look like the head of a tag; its length when it does not."""
        head = self._head.search(text, max(start, len(text) - self._longest + 1))
        while head is not None:
            end = text[head.start() :]
            if any(tag.startswith(end) for tag in self._tags):
                return head.start()
            head = self._head.search(text, head.end())
        return len(text)


class TextScanner:
    """The unread part of a text. `take_*` methods read; they return less while a tag may still be coming."""

    __slots__ = ("_position", "_recorded", "_text", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._recorded: list[str] | None = None
        self.is_ended = False
        """Whether no more text will come, so that nothing is worth waiting for."""

    def append(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._position :] + text
        self._position = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything so far has been read."""
        return self._position == len(self._text)

    @property
    def is_recording(self) -> bool:
        """Whether what is read is noted."""
        return self._recorded is not None

    def peek(self) -> str:
        """Return the next character, or nothing."""
        return self._text[self._position : self._position + 1]

    def take(self, num_characters: int) -> str:
        """Read at most `num_characters`."""
        return self._take_to(min(self._position + num_characters, len(self._text)))

    def take_all(self) -> str:
        """Read everything."""
        return self._take_to(len(self._text))

    def take_until(self, tags: Tags) -> tuple[str, str | None]:
        """Read up to the first of `tags` and over it: (the text before it, the tag).

        Without a tag, read all that cannot be the head of one: (that text, None).
        """
        found = tags.find(self._text, self._position)
        if found is not None:
            begin, end = found
            return self._take_to(begin), self._take_to(end)
        end = len(self._text) if self.is_ended else tags.held_from(self._text, self._position)
        return self._take_to(end), None

    def take_while(self, characters: frozenset[str]) -> str:
        """Read as long as the characters are among `characters`."""
        text, end = self._text, self._position
        while end < len(text) and text[end] in characters:
            end += 1
        return self._take_to(end)

    def take_before(self, end: re.Pattern[str], max_characters: int | None = None) -> str:
        """Read up to a character that `end`, a set of characters, matches, and at most `max_characters`."""
        limit = len(self._text)
        if max_characters is not None:
            limit = min(self._position + max_characters, limit)
        found = end.search(self._text, self._position, limit)
        return self._take_to(limit if found is None else found.start())

    def match(self, tag: str) -> bool | None:
        """Read `tag` if it comes next. None means that it may, once there is more text."""
        if self._text.startswith(tag, self._position):
            self._take_to(self._position + len(tag))
            return True
        rest = self._text[self._position : self._position + len(tag)]
        return None if not self.is_ended and tag.startswith(rest) else False

    def match_first(self, tags: tuple[str, ...]) -> tuple[str | None, bool]:
        """Read the one of `tags` that comes next, and only that: (it, whether one may still come when none does)."""
        may_come = False
        for tag in tags:
            met = self.match(tag)
            if met:
                return tag, False
            may_come |= met is None
        return None, may_come

    def starts_with(self, tags: tuple[str, ...]) -> bool:
        """Whether one of `tags` comes next; it is not read."""
        return self._text.startswith(tags, self._position)

    def may_become(self, tags: tuple[str, ...]) -> bool:
        """Whether all that is unread is the head of one of `tags`, and more may come."""
        rest = self._text[self._position :]
        return not self.is_ended and any(tag.startswith(rest) for tag in tags)

    def put_back(self, text: str) -> None:
        """Undo the reading of `text`, which was read last."""
        self._position -= len(text)
        surplus = len(text) if self._recorded is not None else 0
        while surplus and self._recorded:
            last = self._recorded.pop()
            if len(last) > surplus:
                self._recorded.append(last[:-surplus])
            surplus -= min(surplus, len(last))

    def record(self, text: str = "") -> None:
        """Note what is read from now on; it begins with `text`."""
        self._recorded = [text]

    def stop_recording(self) -> str:
        """Return what was read since `record`, and note no more."""
        recorded = "".join(self._recorded or ())
        self._recorded = None
        return recorded

    def _take_to(self, end: int) -> str:
        piece = self._text[self._position : end]
        self._position = end
        if self._recorded is not None and piece:
            self._recorded.append(piece)
        return piece
