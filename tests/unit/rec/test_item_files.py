"""Item files: what is written is read back, and every kind of damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.rec import InvalidCatalogue, ItemTable, read_items, write_items


def table(num_items: int = 4, *, is_extended: bool = False) -> ItemTable:
    ids = np.arange(num_items, dtype=np.int64) * 7 - 3
    tokens = np.arange(num_items * 3, dtype=np.int32).reshape(-1, 3)
    if not is_extended:
        return ItemTable(ids, tokens)
    return ItemTable(ids, tokens, [f"film {n} é" for n in range(num_items)], ["", "drama", "a", "b"][:num_items])


@pytest.mark.parametrize("is_extended", [False, True])
def test_what_is_written_is_read_back(tmp_path: Path, is_extended: bool):
    items = table(is_extended=is_extended)
    write_items(tmp_path / "items", items)
    read = read_items(tmp_path / "items", is_extended=is_extended)
    assert read.item_ids.tolist() == items.item_ids.tolist()
    assert read.tokens.tolist() == items.tokens.tolist()
    assert (read.document_ids, read.kinds) == (items.document_ids, items.kinds)


def test_the_simple_form_is_the_documented_bytes(tmp_path: Path):
    write_items(tmp_path / "items", ItemTable(np.array([258]), np.array([[1, 2, 3]], np.int32)))
    expected = b"\x02\x01" + bytes(6) + b"\x01\0\0\0\x02\0\0\0\x03\0\0\0"
    assert (tmp_path / "items").read_bytes() == expected


def test_the_extended_form_is_the_documented_bytes(tmp_path: Path):
    write_items(tmp_path / "items", ItemTable(np.array([1]), np.array([[4, 5, 6]], np.int32), ["ab"], ["c"]))
    expected = b"\x01" + bytes(7) + b"\x02\0\0\0ab\x01\0\0\0c" + b"\x04\0\0\0\x05\0\0\0\x06\0\0\0"
    assert (tmp_path / "items").read_bytes() == expected


@pytest.mark.parametrize("is_extended", [False, True])
def test_every_cut_is_noticed(tmp_path: Path, is_extended: bool):
    path = tmp_path / "items"
    write_items(path, table(3, is_extended=is_extended))
    whole = path.read_bytes()
    ends = {len(whole)}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            ends.add(length) if read_items(path, is_extended=is_extended).num_items else None
        except InvalidCatalogue:
            continue
    assert len(ends) == 3, "only whole records can be read"


def test_an_item_must_not_come_twice():
    with pytest.raises(InvalidCatalogue, match="Item 5 is in the catalogue twice"):
        ItemTable(np.array([5, 1, 5]), np.ones((3, 3), np.int32))


@pytest.mark.parametrize("token", [-1, 100])
def test_tokens_must_be_in_the_vocabulary(token: int):
    with pytest.raises(InvalidCatalogue, match="Item 9"):
        ItemTable(np.array([8, 9]), np.array([[1, 2, 3], [1, token, 3]], np.int32)).check_vocabulary(100)


def test_other_damage_is_named(tmp_path: Path):
    with pytest.raises(InvalidCatalogue, match="cannot be read"):
        read_items(tmp_path / "missing")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InvalidCatalogue, match="no item"):
        read_items(tmp_path / "empty")
    (tmp_path / "text").write_bytes(bytes(8) + b"\x01\0\0\0\xff\0\0\0\0" + bytes(12))
    with pytest.raises(InvalidCatalogue, match="UTF-8"):
        read_items(tmp_path / "text", is_extended=True)
    with pytest.raises(InvalidCatalogue, match="1 to 8 tokens"):
        ItemTable(np.array([1]), np.zeros((1, 9), np.int32))
    with pytest.raises(InvalidCatalogue, match="differ in length"):
        ItemTable(np.array([1]), np.zeros((1, 3), np.int32), ["a", "b"])


@given(content=st.binary(max_size=200), is_extended=st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, is_extended: bool):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        items = read_items(path, is_extended=is_extended)
    except InvalidCatalogue:
        return
    write_items(path, items)
    assert read_items(path, is_extended=is_extended).item_ids.tolist() == items.item_ids.tolist()
