"""Finds stop strings in text that arrives in pieces. Knows nothing of tokens or requests."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Lets text through until a stop string is complete, and holds back only what could still become one.

    The result does not depend on how the text is cut into pieces: the stop string that is complete first counts, and
    of several that end at the same character the longest. Time is linear in the text's length for each stop string.
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool) -> None:
        self._automata = [_Automaton(string) for string in stop if string]
        self._includes_stop = include_stop_str_in_output
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, once one has."""

    def append(self, text: str) -> tuple[str, str | None]:
        """Return (text to deliver now, the stop string that has just ended the text or None).

        After a match nothing more is delivered.
        """
        if self.matched is not None:
            return "", self.matched
        if not self._automata:
            return text, None
        ends = [
            (end, -len(automaton.stop), automaton.stop) for automaton in self._automata if (end := automaton.feed(text))
        ]
        if ends:
            end, _, self.matched = min(ends)
            delivered = self._held + text[:end]
            self._held = ""
            return delivered if self._includes_stop else delivered.removesuffix(self.matched), self.matched
        pending = self._held + text
        num_delivered = len(pending) - max(automaton.num_matching for automaton in self._automata)
        self._held = pending[num_delivered:]
        return pending[:num_delivered], None

    def flush(self) -> str:
        """Return the text still held back, when the output ends otherwise."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Knuth, Morris and Pratt's search for one string; `num_matching` last characters could begin an occurrence."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matching = 0
        self._fallback = _fallback_lengths(stop)

    def feed(self, text: str) -> int | None:
        """Go over `text`; return the end of the first occurrence's last character in it, None without one."""
        stop, fallback, matching = self.stop, self._fallback, self.num_matching
        position = 0
        while position < len(text):
            if matching == 0:
                position = text.find(stop[0], position)
                if position < 0:
                    break
            character = text[position]
            while matching and stop[matching] != character:
                matching = fallback[matching]
            matching += stop[matching] == character
            position += 1
            if matching == len(stop):
                return position
        self.num_matching = matching
        return None


def _fallback_lengths(stop: str) -> list[int]:
    """Return, for each length k, how long the longest proper prefix of `stop[:k]` is that also ends it."""
    lengths = [0, 0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = lengths[length]
        length += stop[length] == character
        lengths.append(length)
    return lengths
