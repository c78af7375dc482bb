"""Counts the tokens that an answer spent on reasoning. Knows no format."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from xllm_server.parsers.reasoning.interface import ReasoningParser
from xllm_server.ports import Tokenizer


class ReasoningTokenCounter:
    """Follows an answer token by token with a parser of its own, so that the count is the same however outputs come.

    A token counts when it begins or ends inside reasoning: tags, once they are known for what they are, included.
    """

    def __init__(self, parser: ReasoningParser, tokenizer: Tokenizer) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_tokens = 0
        """Reasoning tokens so far."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Follow the next tokens."""
        for token_id in token_ids:
            was_reasoning = self._parser.is_reasoning
            self._parser.feed(self._characters.decode(self._tokenizer.token_bytes(token_id)))
            self.num_tokens += was_reasoning or self._parser.is_reasoning
