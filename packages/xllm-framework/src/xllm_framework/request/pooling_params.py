"""What a request that generates nothing wants of its prompt's hidden states. Knows nothing of tensors or of models."""

from __future__ import annotations

from typing import Literal

import msgspec

PoolingKind = Literal["last", "mean", "cls", "media"]
"""The last token's hidden state, the mean of all, the first token's; or the embeddings of the prompt's images and videos."""


class PoolingParams(msgspec.Struct, array_like=True, frozen=True):
    """Which vector stands for a prompt. The prompt is computed, nothing is generated, and no KV of it is kept but cached."""

    kind: PoolingKind = "last"
    logit_ids: tuple[int, ...] = ()
    """With `last`: the head's outputs of these indices at the last token (tokens, or a classifier's labels), in place of
    its hidden state."""

    @property
    def needs_every_position(self) -> bool:
        """Whether no position may come from the prefix cache, which holds no hidden states."""
        return self.kind != "last"
