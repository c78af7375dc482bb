"""A model's vocabulary as llguidance wants it. Knows nothing of grammars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from xllm_framework.errors import InvalidRequest
from xllm_framework.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model."""

    tokenizer: LLTokenizer
    token_bytes: list[bytes]
    """By token id; special tokens have their names, those without text are empty."""
    special_token_ids: list[int]

    _masks: dict[bytes, npt.NDArray[np.int32]] = field(default_factory=dict)

    @cached_property
    def marks(self) -> Mapping[str, int]:
        """The special tokens by name."""
        names = {token_id: self.token_bytes[token_id].decode("utf-8", "replace") for token_id in self.special_token_ids}
        return {name: token_id for token_id, name in names.items() if name}

    @cached_property
    def _mark_pattern(self) -> re.Pattern[str]:
        names = sorted(self.marks, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    def split_marks(self, text: str) -> list[str | int]:
        """Return `text` in pieces: ids of the special tokens that it names, and what stands between."""
        pieces: list[str | int] = []
        end = 0
        for found in self._mark_pattern.finditer(text):
            pieces += [text[end : found.start()], self.marks[found[0]]]
            end = found.end()
        return [piece for piece in (*pieces, text[end:]) if piece != ""]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, in which special tokens stand by name."""
        token_ids: list[int] = []
        for piece in self.split_marks(text):
            token_ids += [piece] if isinstance(piece, int) else self.tokenizer.tokenize_str(piece)
        return token_ids

    @cached_property
    def full_mask(self) -> npt.NDArray[np.int32]:
        """int32 [W]: every token."""
        mask: npt.NDArray[np.int32] = self.free_mask.copy()
        for token_id in self.tokenizer.eos_tokens:
            mask |= self.mask_of_token(token_id)
        return mask

    def mask_of_token(self, token_id: int) -> npt.NDArray[np.int32]:
        """Return int32 [W]: this token alone."""
        flags = np.zeros((self.tokenizer.vocab_size + 31) // 32 * 32, np.bool_)
        flags[token_id] = True
        return _packed(flags)

    @cached_property
    def free_mask(self) -> npt.NDArray[np.int32]:
        """int32 [W]: every token but those that end a text."""
        flags = np.zeros((self.tokenizer.vocab_size + 31) // 32 * 32, np.bool_)
        flags[: self.tokenizer.vocab_size] = True
        flags[self.tokenizer.eos_tokens] = False
        return _packed(flags)

    def mask_of_beginnings(self, text: bytes) -> npt.NDArray[np.int32]:
        """Return int32 [W]: the tokens that `text` begins with, or that begin with `text`; computed once."""
        mask = self._masks.get(text)
        if mask is None:
            mask = self._masks[text] = self._mask_of_beginnings(text)
        return mask

    def _mask_of_beginnings(self, text: bytes) -> npt.NDArray[np.int32]:
        flags = np.zeros((self.tokenizer.vocab_size + 31) // 32 * 32, np.bool_)
        for token_id, token in enumerate(self.token_bytes):
            if token and (text.startswith(token) or token.startswith(text)):
                flags[token_id] = True
        return _packed(flags)


class _Tokens:
    """What llguidance asks of a tokenizer: attributes by these names, and a call that tokenises bytes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], eos_token_id: int, special_token_ids: list[int], tokenizer: Tokenizer | None
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = special_token_ids
        self._tokenizer = tokenizer
        self._id_of = {token: token_id for token_id, token in enumerate(tokens) if token}
        for token_id in special_token_ids:
            self._id_of.pop(tokens[token_id], None)
        self._longest = max(map(len, self._id_of), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return tokens whose bytes are `text`: in the model's own way, so that text it is forced to write is familiar."""
        content = text.encode() if isinstance(text, str) else bytes(text)
        if self._tokenizer is not None:
            token_ids = self._tokenizer.encode(content.decode("utf-8", "replace"), add_special_tokens=False)
            tokens = [self.tokens[token_id] if token_id < len(self.tokens) else b"" for token_id in token_ids]
            if b"".join(tokens) == content:
                return token_ids
        return self._longest_first(content)

    def _longest_first(self, content: bytes) -> list[int]:
        """Return the longest token at each place; what follows bytes that no token begins is left out."""
        token_ids, start = [], 0
        while start < len(content):
            for end in range(min(start + self._longest, len(content)), start, -1):
                token_id = self._id_of.get(content[start:end])
                if token_id is not None:
                    token_ids.append(token_id)
                    start = end
                    break
            else:
                break
        return token_ids


def model_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
    """Return the vocabulary of a model with logits for `vocab_size` tokens; takes about a second for 100,000 of them.

    Tokens that the tokenizer does not know, and special ones, match no text. `eos_token_ids` end a text; where there are
    none, a text ends when nothing may follow.

    Raises:
        InvalidRequest: the tokenizer's tokens have no bytes of their own, so that a text cannot be followed token by token.
    """
    if tokenizer.alphabet is None:
        raise InvalidRequest(
            "Output cannot be constrained: one by one, the tokens of this model's tokenizer mean no bytes."
        )
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
    special = [token_id for token_id in range(vocab_size) if tokenizer.is_special(token_id)]
    ends = sorted(token_id for token_id in set(eos_token_ids) if token_id < vocab_size)
    if not ends:
        tokens.append(b"<end>")
        special.append(vocab_size)
        ends = [vocab_size]
    return _vocabulary(_Tokens(tokens, ends[0], special, tokenizer), ends)


def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary of the 256 bytes and an end, with which a grammar can be tried without a model."""
    tokens = [bytes([value]) for value in range(256)] + [b"<end>"]
    return _vocabulary(_Tokens(tokens, 256, [256], None), [256])


def _vocabulary(tokens: _Tokens, ends: list[int]) -> Vocabulary:
    # It asks for these attributes only, whatever its annotation says.
    tokenizer = LLTokenizer(tokens, n_vocab=len(tokens.tokens), eos_token=ends)  # type: ignore[arg-type]
    return Vocabulary(tokenizer, tokens.tokens, tokens.special_token_ids)


def _packed(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    return np.packbits(flags, bitorder="little").view(np.int32)
