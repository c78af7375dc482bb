"""Keeps answers of the Responses API for a while, in bounded memory; the oldest go first. Knows nothing of JSON shapes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from xllm_server.protocol.responses import ResponseAnswer

MAX_RESPONSES = 4096
MAX_CHARACTERS = 64 * 1024 * 1024
"""Over all conversations kept, each counted as a whole."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer, and the conversation up to it as a chat's messages."""

    answer: ResponseAnswer
    messages: list[dict[str, Any]]
    num_characters: int


class ResponseStore:
    """Event loop only."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._num_characters = 0
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, answer: ResponseAnswer, messages: list[dict[str, Any]]) -> None:
        """Keep an answer; one that is larger than the whole store is not kept."""
        self.remove(answer.id)
        stored = StoredResponse(answer, messages, sum(len(str(message)) for message in messages))
        self._responses[answer.id] = stored
        self._num_characters += stored.num_characters
        while len(self._responses) > self._max_responses or self._num_characters > self._max_characters:
            _, oldest = self._responses.popitem(last=False)
            self._num_characters -= oldest.num_characters

    def get(self, response_id: str) -> StoredResponse | None:
        """Return what is kept under this id; it counts as used."""
        stored = self._responses.get(response_id)
        if stored is not None:
            self._responses.move_to_end(response_id)
        return stored

    def remove(self, response_id: str) -> bool:
        """Forget an answer; False when there was none."""
        stored = self._responses.pop(response_id, None)
        if stored is not None:
            self._num_characters -= stored.num_characters
        return stored is not None
