"""One model's tokenizer. Knows nothing of files, of chat templates or of text that arrives in pieces.

Encoding is the `tokenizers` library's. Decoding works on bytes wherever the vocabulary has bytes, so that a token may
hold half a character, and every function here says the same about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import tokenizers

from xllm_framework.tokenizer.token_bytes import Alphabet, alphabet_of

LONG_TEXT = 4096
"""Texts above this many characters are encoded with the interpreter's lock released."""
MAX_CHARACTERS_NORMALISED_TO_ONE = 4
"""How far a normalizer may shrink a text: Unicode composes at most three letters of a Korean syllable to one."""
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def without_lone_surrogates(text: str) -> str:
    """Return `text` with U+FFFD in place of surrogates, which are no characters and cannot be written as UTF-8."""
    return _LONE_SURROGATES.sub("\ufffd", text)


class Tokenizer:
    """Text to ids and back. Its methods may be called from any thread; time is linear in the text's length.

    `backend` must neither pad nor truncate. `eos_token_ids` are ids that end a text. `bos_ids` are put before and
    `eos_ids` behind an encoded text that asks for special tokens, besides what `backend` itself adds.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        bos_ids: tuple[int, ...] = (),
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        self._backend = backend
        self.eos_token_ids = eos_token_ids
        self._bos_ids = list(bos_ids)
        self._eos_ids = list(eos_ids)
        self._alphabet = alphabet_of(backend)
        added = backend.get_added_tokens_decoder()
        self._added_text = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        """One more than the largest id."""
        self._bytes_of: list[bytes | None] = [None] * self.vocab_size

    @property
    def alphabet(self) -> Alphabet | None:
        """How tokens mean bytes; None when they can only be decoded together."""
        return self._alphabet

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`; the texts of special tokens inside it become those tokens.

        Lone surrogates, which are no characters, count as U+FFFD.
        """
        text = without_lone_surrogates(text)
        if len(text) > LONG_TEXT:
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        else:
            encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return self._bos_ids + ids + self._eos_ids if add_special_tokens else ids

    def max_text_length(self, max_tokens: int) -> int:
        """Return how many characters `max_tokens` tokens can hold; a longer text need not be encoded to be refused.

        Texts made of what the vocabulary does not know are left out of account.
        """
        shrink = 1 if self._backend.normalizer is None else MAX_CHARACTERS_NORMALISED_TO_ONE
        return max_tokens * self._longest_token * shrink

    @cached_property
    def _longest_token(self) -> int:
        return max((len(self.token_text(token_id)) for token_id in range(self.vocab_size)), default=1)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, is_continuation: bool = False) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, ids beyond the vocabulary nothing.

        `is_continuation` keeps a first space that a sentencepiece tokenizer would take for its own: the ids follow text.
        """
        if self._alphabet is None:
            return self.decode_words(ids, skip_special_tokens=skip_special_tokens)
        text = self.join_bytes(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")
        if self._alphabet.strips_first_space and not is_continuation:
            return text.removeprefix(" ")
        return text

    def join_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool) -> bytes:
        """Return the bytes of `ids`, one token's after the other's."""
        if skip_special_tokens:
            return b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in self._special_ids])
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode_words(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `ids` as the library's decoder has it; for vocabularies without an alphabet."""
        known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that this token adds to a text; a special token's are those of its name."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        known = self._bytes_of[token_id]
        if known is None:
            known = self._bytes_of[token_id] = self._find_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return the text of this token alone, with U+FFFD for parts of characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, left out of text by `skip_special_tokens`."""
        return token_id in self._special_ids

    def _find_bytes(self, token_id: int) -> bytes:
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode()
        if self._alphabet is None:
            return self.decode_words([token_id], skip_special_tokens=False).encode()
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._alphabet.to_bytes(token)
