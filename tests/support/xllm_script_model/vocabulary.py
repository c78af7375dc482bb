"""The script model's tokens: every byte, some pieces of several bytes, and specials. Knows nothing of files or tensors.

Ids 0 to 255 are the bytes themselves. The vocabulary has no merges, so any text is encoded byte by byte; the longer pieces
appear only where a script asks for them.
"""

from __future__ import annotations

EOS = "<|eos|>"
SCRIPT = "<|script|>"
END_SCRIPT = "<|end_script|>"
ASSISTANT = "<|assistant|>"
RAISE = "<|raise|>"
"""In a script: the forward pass raises when this token's turn comes."""
NAN = "<|nan|>"
"""In a script: the logits of this token's turn are not finite."""
SLOW = "<|slow|>"
"""In a script, not counted as a token: every step that generates from the script takes 10 ms longer, once a mention."""

SPECIALS = (
    EOS,
    SCRIPT,
    END_SCRIPT,
    "<|system|>",
    "<|user|>",
    ASSISTANT,
    "<|tool|>",
    "<|end|>",
    "<|tools|>",
    RAISE,
    NAN,
    SLOW,
)

PIECES: tuple[bytes, ...] = (
    *(b"XY", b"WXYZ", b"WX", b"YZ", b"AB", b"ABC", b"ABCX", b"b,", b"b,c", b",c"),
    *("😀".encode()[:2], "😀".encode()[2:]),
    *("客".encode()[:2], "客".encode()[2:]),
    *("客单价".encode()[:2], "客单价".encode()[2:5], "客单价".encode()[5:]),
    *(b"Hello", b" world", b" one", b" two", b" three", b"The", b" end", b"\n\n", b"\r\n"),
    *(b'{"', b'":', b'"}', b"[{", b"}]", b"<think>", b"</think>", b"<tool_call>", b"</tool_call>"),
)


def _distinct(pieces: tuple[bytes, ...]) -> list[bytes]:
    return [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]


TOKENS: tuple[bytes, ...] = (
    *(bytes([value]) for value in range(256)),
    *_distinct(PIECES),
    *(special.encode() for special in SPECIALS),
)
"""Bytes of every token, by id."""

_IDS = {token: index for index, token in enumerate(TOKENS)}


def token_id(token: str | bytes) -> int:
    """Return the id of a token given as text or as bytes.

    Raises:
        KeyError: the vocabulary has no such token.
    """
    return _IDS[token.encode() if isinstance(token, str) else token]
