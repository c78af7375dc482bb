"""Items from tables that people keep: CSV, or Parquet where pyarrow is installed. Knows nothing of our binary forms.

Columns: `item_id`, the tokens as `token_0`, `token_1`, ... or as one column `tokens` of numbers with spaces between, and
perhaps `document_id` and `type`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from xllm_framework.rec.item_table import InvalidCatalogue, ItemTable

Columns = dict[str, list[Any]]


def read_item_rows(path: Path) -> ItemTable:
    """Return the items of a .csv or .parquet file.

    Raises:
        InvalidCatalogue: the file cannot be read, lacks a column, or holds something else than numbers; names the row.
    """
    try:
        columns = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except OSError as error:
        raise InvalidCatalogue(f"The file {path} cannot be read: {error.strerror or error}.") from error
    if "item_id" not in columns:
        raise InvalidCatalogue(f"The file {path} has no column item_id.")
    if not columns["item_id"]:
        raise InvalidCatalogue(f"The file {path} holds no item.")
    item_ids = np.array(_numbers(columns["item_id"], "item_id", path), np.int64)
    tokens = np.array(_tokens(columns, path), np.int32).reshape(len(item_ids), -1)
    document_ids, kinds = (
        [str(text) for text in columns[name]] if name in columns else None for name in ("document_id", "type")
    )
    return ItemTable(item_ids, tokens, document_ids, kinds)


def _tokens(columns: Columns, path: Path) -> list[list[int]]:
    """Return the tokens of each row."""
    if "tokens" in columns:
        split = [text.split() if isinstance(text, str) else list(text) for text in columns["tokens"]]
        rows = [_numbers(row, "tokens", path) for row in split]
        if len({len(row) for row in rows}) > 1:
            raise InvalidCatalogue(f"The items of {path} have different numbers of tokens.")
        return rows
    names: list[str] = []
    while f"token_{len(names)}" in columns:
        names.append(f"token_{len(names)}")
    if not names:
        raise InvalidCatalogue(f"The file {path} has neither a column tokens nor token_0, token_1, ...")
    return [list(row) for row in zip(*(_numbers(columns[name], name, path) for name in names), strict=True)]


def _numbers(values: list[Any], name: str, path: Path) -> list[int]:
    numbers = []
    for row, value in enumerate(values):
        try:
            numbers.append(int(value))
        except (TypeError, ValueError):
            raise InvalidCatalogue(f"Row {row} of {path} has {value!r} in column {name}, not a number.") from None
    return numbers


def _read_csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        columns: Columns = {name: [] for name in names}
        for number, row in enumerate(rows):
            if len(row) != len(names):
                raise InvalidCatalogue(f"Row {number} of {path} has {len(row)} fields, not {len(names)}.")
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
    return columns


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InvalidCatalogue(f"Reading {path} needs pyarrow: pip install 'xllm-framework[parquet]'.") from None
    columns: Columns = parquet.read_table(path).to_pydict()
    return columns
