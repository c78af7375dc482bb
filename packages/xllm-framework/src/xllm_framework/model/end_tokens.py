"""Which tokens of a GGUF vocabulary end a text. Knows nothing of tokenising.

GGUF names one end-of-text token, but chat models stop at another: as llama.cpp does, the well-known ones are found by
their text among the control tokens.
"""

from __future__ import annotations

from typing import Any

CONTROL_TOKEN = 3
"""Token type of GGUF: special, never part of text."""
USER_DEFINED_TOKEN = 4
END_TOKEN_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endofturn|>",
        "<|eot|>",
        "<|eom|>",
        "<|return|>",
        "<｜end▁of▁sentence｜>",
        "</s>",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_end_token_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids that end a text: those that the metadata name first, then those with a well-known text."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    ids = [metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    named = [token_id for token_id in ids if isinstance(token_id, int) and 0 <= token_id < len(tokens)]
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None or len(types) != len(tokens):
        return tuple(dict.fromkeys(named))
    special = [index for index, kind in enumerate(types.tolist()) if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)]
    return tuple(dict.fromkeys([*named, *(index for index in special if tokens[index] in END_TOKEN_TEXTS)]))
