"""Walks through grammars with random logits: what a model without sense would write under a constraint."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import tokenizers
from tokenizers import decoders, models

from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_framework.constraint import Constraint, ConstraintState
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.constraint import GrammarCompiler
from xllm_runtime.constraint.vocabulary import model_vocabulary

MERGED = ['":', '",', "{}", "[]", "true", "null", '{"', "  ", "\n\n", "é", "世", "12", "-", "false", ' "', "},"]
SPECIAL = ["<eos>", "<pad>"]


def tiny_tokenizer(marks: Iterable[str] = ()) -> Tokenizer:
    """Return a tokenizer of all 256 bytes, a few longer tokens, and special ones, the first of which ends a text."""
    texts = [f"<0x{value:02X}>" for value in range(256)] + MERGED
    backend = tokenizers.Tokenizer(
        models.BPE({text: index for index, text in enumerate(texts)}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([*SPECIAL, *marks])
    return Tokenizer(backend, eos_token_ids=(len(texts),))


def compiler_of(tokenizer: Tokenizer, vocab_size: int | None = None) -> GrammarCompiler:
    """Return a compiler for `tokenizer` and a model with that many logits."""
    size = vocab_size or tokenizer.vocab_size
    return GrammarCompiler(lambda: model_vocabulary(tokenizer, size, tokenizer.eos_token_ids))


def schema_constraint(schema: object) -> Constraint:
    """Return the constraint to a JSON schema."""
    return Constraint("json_schema", json.dumps(schema))


def allowed_ids(state: ConstraintState, vocab_size: int) -> set[int]:
    """Return the tokens that may follow."""
    return set(np.flatnonzero(AllowedTokens.of([(0, state)]).unpacked(vocab_size)[0]).tolist())


class RandomWriter:
    """Draws tokens by random logits, with a growing taste for those in `ends`, so that texts end.

    Where any byte may follow, it soon writes `closing`.
    """

    def __init__(
        self, tokenizer: Tokenizer, seed: int, ends: Iterable[str] = ('"', "}", "]", ",", ":"), closing: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        self._closing = tokenizer.encode(closing, add_special_tokens=False) if closing else []
        self._random = np.random.default_rng(seed)
        ends = tuple(end.encode() for end in ends)
        texts = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self._is_end = np.array([text in ends for text in texts])
        self._is_end[list(tokenizer.eos_token_ids)] = True

    def write(self, state: ConstraintState, max_tokens: int = 600) -> str | None:
        """Return the text that `state` leads to; None where it does not end within `max_tokens`."""
        token_ids: list[int] = []
        vocab_size = self._tokenizer.vocab_size
        num_closed = 0
        for step in range(max_tokens):
            is_allowed = AllowedTokens.of([(0, state)]).unpacked(vocab_size)[0]
            assert is_allowed.any(), state.error
            logits = self._random.gumbel(size=vocab_size) + self._is_end * (0.3 * step)
            token_id = int(np.where(is_allowed, logits, -np.inf).argmax())
            is_free = is_allowed[:128].sum() > 120 and step > 20
            if self._closing and (is_free or num_closed) and is_allowed[self._closing[num_closed]]:
                token_id = self._closing[num_closed]
                num_closed = (num_closed + 1) % len(self._closing)
            state.accept(token_id)
            assert state.error is None
            if token_id in self._tokenizer.eos_token_ids:
                break
            token_ids.append(token_id)
            if state.is_complete:
                break
        else:
            return None
        return self._tokenizer.join_bytes(token_ids, skip_special_tokens=False).decode()
