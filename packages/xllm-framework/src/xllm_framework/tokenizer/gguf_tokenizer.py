"""Builds a tokenizer from a GGUF file's metadata. Knows nothing of tensors or of Hugging Face folders.

`tokenizer.ggml.model` is "gpt2" for byte-level BPE with merges, "llama" for sentencepiece BPE with scores.
"""

from __future__ import annotations

from typing import Any, NoReturn

import tokenizers
from tokenizers import decoders, models, normalizers

from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model.end_tokens import CONTROL_TOKEN, USER_DEFINED_TOKEN, gguf_end_token_ids
from xllm_framework.model.gguf_file import GGUFFile
from xllm_framework.tokenizer.pre_tokenizers import WORD_RULES, byte_level_words
from xllm_framework.tokenizer.tokenizer import Tokenizer


def load_gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Return the tokenizer that `file` describes.

    Raises:
        UnsupportedModel: a kind of tokenizer or pre-tokenizer that is not known here.
        ModelLoadError: the vocabulary is missing or broken; names the file and the key.
    """
    vocabulary = _Vocabulary(file)
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(vocabulary), True
    else:
        raise UnsupportedModel(f"{file.path}: tokenizer.ggml.model is {kind!r}; gpt2 and llama are known.")
    vocabulary.add_special_tokens(backend)
    return Tokenizer(
        backend,
        eos_token_ids=gguf_end_token_ids(file.metadata),
        bos_ids=vocabulary.added_ids("bos", adds_bos),
        eos_ids=vocabulary.added_ids("eos", False),
    )


class _Vocabulary:
    """The tokenizer.ggml metadata of one file, checked as they are taken."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.tokens: list[str] = self.strings("tokens")
        if not self.tokens:
            self.fail("tokenizer.ggml.tokens", "is missing or empty")
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        types = file.metadata.get("tokenizer.ggml.token_type")
        self._types: list[int] = [1] * len(self.tokens) if types is None else [*types]
        if len(self._types) != len(self.tokens):
            self.fail("tokenizer.ggml.token_type", f"has {len(self._types)} entries for {len(self.tokens)} tokens")

    def fail(self, key: str, what: str) -> NoReturn:
        raise ModelLoadError(f"{self._file.path}: {key} {what}.")

    def get(self, key: str) -> Any:
        return self._file.metadata.get(f"tokenizer.ggml.{key}")

    def strings(self, key: str) -> list[str]:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(f"tokenizer.ggml.{key}", "is no list of strings")
        return value or []

    def added_ids(self, name: str, default: bool) -> tuple[int, ...]:
        """Return the bos or eos id that texts get, if they get one."""
        token_id = self.get(f"{name}_token_id")
        adds = self.get(f"add_{name}_token")
        adds = default if adds is None else adds
        return (token_id,) if adds and isinstance(token_id, int) and 0 <= token_id < len(self.tokens) else ()

    def add_special_tokens(self, backend: tokenizers.Tokenizer) -> None:
        """Have control and user-defined tokens found inside text; control tokens and end tokens are special."""
        end_ids = gguf_end_token_ids(self._file.metadata)
        added = [
            tokenizers.AddedToken(token, special=kind == CONTROL_TOKEN or index in end_ids, normalized=False)
            for index, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if token and (kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN) or index in end_ids)
        ]
        backend.add_tokens(added)


def _byte_level(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    name = vocabulary.get("pre")
    name = "default" if name is None else name
    if name not in WORD_RULES:
        vocabulary.fail("tokenizer.ggml.pre", f"is {name!r}, a pre-tokenizer that is not known here")
    rule = WORD_RULES[name]
    merges = [_merge(vocabulary, merge) for merge in vocabulary.strings("merges")]
    try:
        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=rule.ignores_merges)
    except Exception as error:  # the library raises bare Exceptions
        vocabulary.fail("tokenizer.ggml.merges", f"do not fit the vocabulary: {error}")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = byte_level_words(rule)
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _merge(vocabulary: _Vocabulary, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator:
        vocabulary.fail("tokenizer.ggml.merges", f"has the entry {merge!r}, which is no pair")
    return left, right


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    unknown = vocabulary.get("unknown_token_id")
    unknown = unknown if isinstance(unknown, int) and 0 <= unknown < len(vocabulary.tokens) else None
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=_merges_by_score(vocabulary),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    has_prefix = vocabulary.get("add_space_prefix") is not False
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if has_prefix else [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return backend


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Return the pairs that make up each token, those of the token with the best score first.

    Sentencepiece joins whichever neighbours give the best-scored token, which is what BPE does with this order.
    """
    scores = vocabulary.get("scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        vocabulary.fail("tokenizer.ggml.scores", "must hold one number a token")
    ids = vocabulary.ids
    order = sorted(range(len(vocabulary.tokens)), key=lambda index: (-float(scores[index]), index))
    return [
        (token[:cut], token[cut:])
        for token in (vocabulary.tokens[index] for index in order)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
