"""Writes the prompts that the script model obeys, and reads them back from token ids. Knows nothing of tensors.

A script is a list of token ids, written in decimal between two special tokens:

    <|script|>72 105 258<|end_script|>

The answer begins after the first <|assistant|> that follows the last script of the prompt, or right after the script when
there is none. It holds the listed tokens, then end-of-text for ever; a prompt without a script gets end-of-text at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from xllm_script_model.vocabulary import ASSISTANT, END_SCRIPT, SCRIPT, SLOW, token_id

_SCRIPT_ID = token_id(SCRIPT)
_END_SCRIPT_ID = token_id(END_SCRIPT)
_ASSISTANT_ID = token_id(ASSISTANT)
_SLOW_ID = token_id(SLOW)


def script(*tokens: int | str | bytes) -> str:
    """Return prompt text that makes the model answer with `tokens`, to be used as a prompt or inside a chat message.

    A token is an id, or a vocabulary entry (text, bytes or special); other text and bytes stand for one token a byte.
    """
    ids: list[int] = []
    for token in tokens:
        if isinstance(token, int):
            ids.append(token)
            continue
        try:
            ids.append(token_id(token))
        except KeyError:
            ids.extend(token.encode() if isinstance(token, str) else token)
    return f"{SCRIPT}{' '.join(map(str, ids))}{END_SCRIPT}"


@dataclass(frozen=True, slots=True)
class Script:
    """What a token history asks for: `token_ids` from position `start` on, each step `num_slow` x 10 ms late."""

    start: int
    token_ids: list[int]
    num_slow: int = 0

    @classmethod
    def read(cls, history: npt.NDArray[np.int64]) -> Script | None:
        """Return the last complete script in `history` (int64 [tokens]), or None."""
        ends = np.flatnonzero(history == _END_SCRIPT_ID)
        if len(ends) == 0:
            return None
        end = int(ends[-1])
        begins = np.flatnonzero(history[:end] == _SCRIPT_ID)
        if len(begins) == 0:
            return None
        token_ids, num_slow = _parsed(history[int(begins[-1]) + 1 : end].astype(np.uint8).tobytes())
        markers = np.flatnonzero(history[end:] == _ASSISTANT_ID)
        start = end + 1 + (int(markers[0]) if len(markers) else 0)
        return cls(start, token_ids, num_slow)


@lru_cache(maxsize=4096)
def _parsed(text: bytes) -> tuple[list[int], int]:
    """Return the tokens that a script lists, and how often it asks for slowness."""
    token_ids = [int(word) for word in text.split()]
    return [item for item in token_ids if item != _SLOW_ID], token_ids.count(_SLOW_ID)
