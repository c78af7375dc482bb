"""Finds blocks whose KV was computed for the same beginning of a prompt. Knows nothing of who holds blocks.

A block's key is chained, so that it stands for all tokens from the start to the end of the block:

    key[-1] = H(secret, domain)                      domain = the request's cache salt (later also model, adapter)
    key[i]  = H(secret, key[i - 1] || tokens of block i || tag of block i)

The tag is what a block's tokens stand for beyond their ids: the hashes of its images, empty for text.

H is keyed BLAKE2b (RFC 7693) of 16 bytes, with a secret drawn for each process: a client can neither construct a
collision nor learn from another salt's timing what others have sent. Only full blocks have keys.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Protocol

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import IntegrityError
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK
from xllm_framework.multimodal.prompt_media import PromptMedia

KEY_BYTES = 16


def new_secret() -> bytes:
    """Return a secret for `HashPrefixCache`, 32 random bytes."""
    return secrets.token_bytes(32)


class PrefixCache(Protocol):
    """A map from beginnings of token lists to block ids.

    Holds no references: whoever matches must share the blocks before anything can be allocated, and whoever takes a
    block for other content must `evict` it first. An implementation need not copy `token_ids`, which never change
    within a full block. `block_keys` is a list that belongs to the token list (`Sequence.block_hashes`): an
    implementation may extend it with keys of full blocks, so that none is computed twice; others leave it empty.
    """

    def match(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        max_blocks: int,
        media: PromptMedia | None = None,
    ) -> list[int]:
        """Return the ids of the longest known run of leading blocks, at most `max_blocks` (0 is allowed).

        `token_ids` has at least `max_blocks` full blocks, `media` is what place-holders among them stand for. Changes
        nothing but `block_keys`.
        """

    def insert(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        block_table: list[int],
        start: int,
        media: PromptMedia | None = None,
    ) -> list[int]:
        """Make the full blocks [start, len(token_ids) // block_size) of `block_table` known.

        `token_ids` ends with the last computed token. Returns the ids that are now known by this call: where the same
        content is known in another block already, that one stays and this one is left out; so is block 0.
        """

    def extend_keys(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        num_blocks: int,
        media: PromptMedia | None = None,
    ) -> None:
        """Make `block_keys` hold the keys of at least the first `num_blocks` blocks, which are full."""

    def block_of(self, key: bytes) -> int | None:
        """Return the block that is known under `key`."""

    def key_of(self, block_id: int) -> bytes:
        """Return the key, among the sequence's `block_keys`, under which a block that `insert` returned is known."""

    def evict(self, block_id: int) -> None:
        """Forget a block that `insert` returned."""

    def check_integrity(self, is_retained: bytearray) -> None:
        """Raise `IntegrityError` unless keys and blocks belong together and `is_retained[block_id]` is set for each."""

    def sibling(self) -> PrefixCache:
        """Return an empty one that makes equal keys, for the blocks of another group of layers."""

    def __len__(self) -> int:
        """Return the number of known blocks."""


class HashPrefixCache:
    """`PrefixCache` by a dictionary of chained keyed hashes; 16 bytes and two dictionary entries a block."""

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        self._block_size = block_size
        self._secret = secret or new_secret()
        self._hasher = hashlib.blake2b(key=self._secret, digest_size=KEY_BYTES)
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def match(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        max_blocks: int,
        media: PromptMedia | None = None,
    ) -> list[int]:
        """Return the longest known run; see `PrefixCache`. Costs one dictionary look-up a block of it."""
        self.extend_keys(token_ids, block_keys, salt, max_blocks, media)
        block_of = self._block_of
        blocks = []
        for key in block_keys[:max_blocks]:
            block_id = block_of.get(key)
            if block_id is None:
                break
            blocks.append(block_id)
        return blocks

    def insert(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        block_table: list[int],
        start: int,
        media: PromptMedia | None = None,
    ) -> list[int]:
        """Make blocks known; see `PrefixCache`."""
        end = len(token_ids) // self._block_size
        self.extend_keys(token_ids, block_keys, salt, end, media)
        inserted = []
        for index in range(start, end):
            key, block_id = block_keys[index], block_table[index]
            if key not in self._block_of and block_id not in self._key_of and block_id != PADDING_BLOCK:
                self._block_of[key] = block_id
                self._key_of[block_id] = key
                inserted.append(block_id)
        return inserted

    def block_of(self, key: bytes) -> int | None:
        """Return the block of a key; see `PrefixCache`."""
        return self._block_of.get(key)

    def key_of(self, block_id: int) -> bytes:
        """Return the key of a known block; see `PrefixCache`."""
        return self._key_of[block_id]

    def evict(self, block_id: int) -> None:
        """Forget a block; see `PrefixCache`."""
        del self._block_of[self._key_of.pop(block_id)]

    def check_integrity(self, is_retained: bytearray) -> None:
        """Compare with the pool; see `PrefixCache`."""
        if len(self._block_of) != len(self._key_of):
            raise IntegrityError("The prefix cache holds keys without blocks, or blocks without keys.")
        for block_id, key in self._key_of.items():
            if self._block_of.get(key) != block_id or not is_retained[block_id]:
                raise IntegrityError(f"The prefix cache knows block {block_id}, which the pool does not retain for it.")

    def sibling(self) -> HashPrefixCache:
        """Return an empty one with the same secret; see `PrefixCache`."""
        return HashPrefixCache(self._block_size, self._secret)

    def __len__(self) -> int:
        return len(self._key_of)

    def extend_keys(
        self,
        token_ids: npt.NDArray[np.int32],
        block_keys: list[bytes],
        salt: str,
        num_blocks: int,
        media: PromptMedia | None = None,
    ) -> None:
        """Make keys; see `PrefixCache`."""
        first = len(block_keys)
        if first >= num_blocks:
            return
        key = block_keys[-1] if first else self._hash(salt.encode("utf-8", "surrogatepass"))
        num_bytes = 4 * self._block_size
        content = token_ids[first * self._block_size : num_blocks * self._block_size].tobytes()
        copy_hasher = self._hasher.copy
        for start in range(0, len(content), num_bytes):
            hasher = copy_hasher()
            hasher.update(key + content[start : start + num_bytes])
            if media is not None:
                token = first * self._block_size + start // 4
                hasher.update(media.tag(token, token + self._block_size))
            key = hasher.digest()
            block_keys.append(key)

    def _hash(self, content: bytes) -> bytes:
        hasher = self._hasher.copy()
        hasher.update(content)
        return hasher.digest()
