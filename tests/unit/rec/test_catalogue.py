"""Paths and catalogues: every item can be reached, nothing else can, and leaves lead back to items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.rec import Catalogue, CatalogueStore, InvalidCatalogue, ItemTable, open_catalogue, write_items
from xllm_framework.rec.catalogue import bundled_items
from xllm_framework.rec.valid_paths import DEAD_NODE, build_paths

ROWS = st.integers(1, 4).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 5), min_size=length, max_size=length), min_size=1, max_size=40)
)


@given(rows=ROWS)
@settings(deadline=None, max_examples=100)
def test_the_tree_holds_the_rows_and_nothing_else(rows: list[list[int]]):
    tokens = np.array(rows, np.int32)
    paths, leaves = build_paths(tokens)
    known = {tuple(row) for row in rows}
    assert paths.num_leaves == len(known)
    for row, leaf in zip(rows, leaves.tolist(), strict=True):
        assert paths.find(row) == leaf
    for level in range(tokens.shape[1]):
        beginnings = {row[:level] for row in known}
        for beginning in beginnings:
            node = paths.find(beginning)
            expected = sorted({row[level] for row in known if row[:level] == beginning})
            assert paths.children(level, node).tolist() == expected
        assert paths.most_children(level) == max(
            len({row[level] for row in known if row[:level] == beginning}) for beginning in beginnings
        )
    assert paths.find([6] * tokens.shape[1]) == DEAD_NODE
    assert paths.children(0, DEAD_NODE).size == 0


def shared_tokens() -> Catalogue:
    tokens = np.array([[1, 2, 3], [1, 2, 3], [0, 0, 0], [1, 2, 3]], np.int32)
    return Catalogue.of(ItemTable(np.array([10, 11, 12, 13]), tokens))


def test_a_leaf_leads_to_all_items_with_its_tokens():
    catalogue = shared_tokens()
    leaf = catalogue.paths.find([1, 2, 3])
    assert catalogue.rows_of(leaf, 50) == [0, 1, 3]
    assert catalogue.rows_of(catalogue.paths.find([0, 0, 0]), 50) == [2]


def test_more_items_than_the_threshold_are_chosen_by_the_seed():
    catalogue = shared_tokens()
    leaf = catalogue.paths.find([1, 2, 3])
    chosen = {tuple(catalogue.rows_of(leaf, 2, seed)) for seed in range(30)}
    assert chosen == {(0, 1), (0, 3), (1, 3)}
    assert catalogue.rows_of(leaf, 2, 7) == catalogue.rows_of(leaf, 2, 7)


def test_catalogues_are_replaced_and_rolled_back():
    first, second = shared_tokens(), shared_tokens()
    store = CatalogueStore(first)
    with pytest.raises(InvalidCatalogue, match="no catalogue to go back to"):
        store.roll_back()
    assert store.replace(second).catalogue is second
    assert store.roll_back().catalogue is first
    assert store.roll_back().catalogue is second
    assert store.served.version == 4
    with pytest.raises(InvalidCatalogue, match="items of 2 tokens"):
        store.replace(Catalogue.of(ItemTable(np.array([1]), np.array([[1, 2]], np.int32))))
    assert store.served.version == 4


def test_a_models_folder_may_bring_its_items(tmp_path: Path):
    assert bundled_items(tmp_path) is None
    items = ItemTable(np.array([1]), np.array([[1, 2, 3]], np.int32), ["x"], ["y"])
    write_items(tmp_path / "items_extended.bin", items)
    assert bundled_items(tmp_path) == (tmp_path / "items_extended.bin", True)
    catalogue = open_catalogue(tmp_path / "items_extended.bin", vocab_size=4, is_extended=True)
    assert catalogue.items.document_ids == ["x"]
    with pytest.raises(InvalidCatalogue, match="from 0 to 2"):
        open_catalogue(tmp_path / "items_extended.bin", vocab_size=3, is_extended=True)
