"""How the text of a vocabulary's entry means bytes. Knows nothing of ids, special tokens or files.

Two alphabets cover causal language models: GPT-2's, where each character stands for one byte, and sentencepiece's,
where "▁" is a space and "<0x0A>" a byte. A vocabulary of whole words has neither; `alphabet_of` returns None for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _gpt2_bytes() -> dict[int, int]:
    """Return code point -> byte of GPT-2's alphabet: printable Latin-1 is itself, the other 68 bytes follow at 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**{byte: byte for byte in printable}, **{256 + index: byte for index, byte in enumerate(others)}}


_GPT2_BYTES = _gpt2_bytes()


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The way from a token's text to its bytes."""

    kind: Literal["byte_level", "sentencepiece"]
    strips_first_space: bool = False
    """Whether a text's first space is the tokenizer's own, put there when the text was encoded."""

    def to_bytes(self, token: str) -> bytes:
        """Return the bytes of a vocabulary entry that is no added token."""
        if self.kind == "sentencepiece":
            match = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()
        try:
            return token.translate(_GPT2_BYTES).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()


def alphabet_of(backend: tokenizers.Tokenizer) -> Alphabet | None:
    """Return the alphabet that the tokenizer's decoder implies, None when its tokens can only be decoded together."""
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return Alphabet("byte_level")
    if "Metaspace" in kinds:
        return Alphabet("sentencepiece", steps[0].get("prepend_scheme", "always") != "never")
    if "ByteFallback" in kinds:
        strips = any(step["type"] == "Strip" and step.get("content") == " " and step.get("start") for step in steps)
        return Alphabet("sentencepiece", strips)
    return None


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps
