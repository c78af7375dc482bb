"""Text of tokens that arrive one by one. Knows nothing of stop strings, requests or streams."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from xllm_framework.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text as they come, in time linear in their number.

    What `append` and `flush` return, joined, equals `tokenizer.decode` of all the ids with the same options. A
    character is returned when its last byte has come, never as U+FFFD before that.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, is_continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        alphabet = tokenizer.alphabet
        self._words = None if alphabet is not None else _WordWindow(tokenizer, skip_special_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = alphabet is not None and alphabet.strips_first_space and not is_continuation

    def append(self, ids: Sequence[int]) -> str:
        """Return the text that these tokens complete; it may be empty."""
        if self._words is not None:
            return self._words.append(ids)
        content = self._tokenizer.join_bytes(ids, skip_special_tokens=self._skip_special_tokens)
        return self._without_first_space(self._decoder.decode(content))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for an incomplete character, else nothing."""
        return "" if self._words is not None else self._without_first_space(self._decoder.decode(b"", final=True))

    def _without_first_space(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class _WordWindow:
    """For vocabularies whose words can only be decoded together: decodes the last words again with the new ones."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._context: list[int] = []
        """The words before, which decide whether a space comes between."""

    def append(self, ids: Sequence[int]) -> str:
        if self._skip_special_tokens:
            ids = [token_id for token_id in ids if not self._tokenizer.is_special(token_id)]
        if not ids:
            return ""
        before = self._decode(self._context)
        after = self._decode([*self._context, *ids])
        self._context = list(ids[-2:])
        return after[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode_words(ids, skip_special_tokens=False)
