"""Files of items, little endian, without a header, one record after the other.

    simple      int64 item id, L x int32 tokens
    extended    int64 item id, uint32 length and bytes of the document id, uint32 length and bytes of the type, L x int32 tokens

L is the number of tokens an item, 3 unless both sides agree on another. Knows nothing of what the tokens mean.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from xllm_framework.rec.item_table import InvalidCatalogue, ItemTable

TOKENS_PER_ITEM = 3
_ITEM_ID = struct.Struct("<q")
_LENGTH = struct.Struct("<I")


def read_items(path: Path, *, tokens_per_item: int = TOKENS_PER_ITEM, is_extended: bool = False) -> ItemTable:
    """Return the items of a file.

    Raises:
        InvalidCatalogue: the file cannot be read, is cut or empty, or holds an item twice or a negative token.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidCatalogue(f"The item file {path} cannot be read: {error.strerror}.") from error
    try:
        if is_extended:
            return _read_extended(content, tokens_per_item)
        return _read_simple(content, tokens_per_item)
    except InvalidCatalogue as error:
        raise InvalidCatalogue(f"The item file {path} is not valid: {error.message}") from None


def write_items(path: Path, items: ItemTable) -> None:
    """Write a file, whole or not at all: extended where the items have document ids or types, else simple."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    is_extended = items.document_ids is not None or items.kinds is not None
    try:
        partial.write_bytes(_extended(items) if is_extended else _simple(items))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _simple_dtype(tokens_per_item: int) -> np.dtype[np.void]:
    return np.dtype([("item_id", "<i8"), ("tokens", "<i4", (tokens_per_item,))])


def _read_simple(content: bytes, tokens_per_item: int) -> ItemTable:
    dtype = _simple_dtype(tokens_per_item)
    left = len(content) % dtype.itemsize
    if left:
        raise InvalidCatalogue(f"it ends {left} bytes into a record of {dtype.itemsize}.")
    records = np.frombuffer(content, dtype)
    return ItemTable(records["item_id"].astype(np.int64), records["tokens"].astype(np.int32))


def _read_extended(content: bytes, tokens_per_item: int) -> ItemTable:
    item_ids: list[int] = []
    texts: tuple[list[str], list[str]] = ([], [])
    token_bytes = bytearray()
    at, num_token_bytes = 0, 4 * tokens_per_item
    while at < len(content):
        start = at
        try:
            item_ids.append(_ITEM_ID.unpack_from(content, at)[0])
            at += _ITEM_ID.size
            for column in texts:
                (length,) = _LENGTH.unpack_from(content, at)
                at += _LENGTH.size + length
                column.append(content[at - length : at].decode())
        except struct.error:
            at = len(content) + 1
        except UnicodeDecodeError:
            raise InvalidCatalogue(f"the record at byte {start} holds a text that is not UTF-8.") from None
        token_bytes += content[at : at + num_token_bytes]
        at += num_token_bytes
        if at > len(content):
            raise InvalidCatalogue(f"the record at byte {start} is cut.")
    tokens = np.frombuffer(bytes(token_bytes), "<i4").reshape(-1, tokens_per_item).astype(np.int32)
    return ItemTable(np.array(item_ids, np.int64), tokens, *texts)


def _simple(items: ItemTable) -> bytes:
    records = np.empty(items.num_items, _simple_dtype(items.tokens_per_item))
    records["item_id"], records["tokens"] = items.item_ids, items.tokens
    return records.tobytes()


def _extended(items: ItemTable) -> bytes:
    nothing = [""] * items.num_items
    parts = []
    for item_id, document_id, kind, tokens in zip(
        items.item_ids.tolist(), items.document_ids or nothing, items.kinds or nothing, items.tokens, strict=True
    ):
        parts.append(_ITEM_ID.pack(item_id))
        for text in (document_id.encode(), kind.encode()):
            parts += [_LENGTH.pack(len(text)), text]
        parts.append(tokens.astype("<i4").tobytes())
    return b"".join(parts)
