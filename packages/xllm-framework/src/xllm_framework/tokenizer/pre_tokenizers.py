"""How byte-level vocabularies of GGUF files cut text into words, by the name in `tokenizer.ggml.pre`.

Knows nothing of merging. Wrong words give wrong tokens without any error, so an unknown name must not be guessed.

Source: llama.cpp's table of pre-tokenizers, and the tokenizer.json files that it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"


@dataclass(frozen=True, slots=True)
class WordRule:
    """Patterns applied one after the other; what a pattern matches is a word, and so is what lies between."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    """A word that is itself in the vocabulary is one token, whatever the merges say."""
    adds_bos: bool = False
    """Whether texts begin with the bos token when the file does not say."""


_GPT2_RULE = WordRule((_GPT2,))
_DIGITS_RULE = WordRule((r"\p{N}", _GPT2))
_QWEN2_RULE = WordRule((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",))
_LLAMA3 = (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",)
_LLAMA3_RULE = WordRule(_LLAMA3, ignores_merges=True, adds_bos=True)
_TEKKEN_RULE = WordRule(
    (rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASH}",),
    ignores_merges=True,
    adds_bos=True,
)
_GPT4O_RULE = WordRule(
    (
        rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
    )
)
_DEEPSEEK_CODER_RULE = WordRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
_DEFAULT_RULE = WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

WORD_RULES: dict[str, WordRule] = {
    "default": _DEFAULT_RULE,
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "mpt", "olmo", "jais", "exaone4", "trillion"), _GPT2_RULE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_RULE),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_RULE),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), WordRule(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _QWEN2_RULE),
    "tekken": _TEKKEN_RULE,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_RULE),
    "deepseek-coder": _DEEPSEEK_CODER_RULE,
}


def byte_level_words(rule: WordRule) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that applies `rule` and then writes each byte as its character of GPT-2's alphabet."""
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in rule.patterns
    ]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
