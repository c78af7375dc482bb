"""The command that makes item files from tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from xllm_framework.rec import InvalidCatalogue, read_items
from xllm_framework.rec.item_rows import read_item_rows
from xllm_server.rec.command import run_rec


def test_csv_with_a_column_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.csv").write_text("item_id,token_0,token_1,token_2\n7,1,2,3\n8,1,2,3\n")
    assert run_rec(["build-items", str(tmp_path / "a.csv"), str(tmp_path / "items.bin"), "--vocab-size", "4"]) == 0
    assert "2 items of 3 tokens" in capsys.readouterr().out
    assert read_items(tmp_path / "items.bin").item_ids.tolist() == [7, 8]


def test_csv_with_one_column_and_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.csv").write_text('document_id,item_id,tokens,type\n"a, b",7,1 2,drama\n')
    assert run_rec(["build-items", str(tmp_path / "a.csv"), str(tmp_path / "items.bin")]) == 0
    assert "extended form" in capsys.readouterr().out
    items = read_items(tmp_path / "items.bin", tokens_per_item=2, is_extended=True)
    assert (items.document_ids, items.kinds, items.tokens.tolist()) == (["a, b"], ["drama"], [[1, 2]])


def test_parquet(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.table({"item_id": [7, 8], "tokens": [[1, 2, 3], [4, 5, 6]], "type": ["x", "y"]})
    parquet.write_table(rows, tmp_path / "a.parquet")
    items = read_item_rows(tmp_path / "a.parquet")
    assert items.tokens.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert items.kinds == ["x", "y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,tokens\n1,2\n", "no column item_id"),
        ("item_id,name\n1,2\n", "neither a column tokens"),
        ("item_id,tokens\n1,x\n", "Row 0 .* 'x' in column tokens"),
        ("item_id,tokens\n1,2 3\n2,4\n", "different numbers of tokens"),
        ("item_id,tokens\n1\n", "Row 0 .* has 1 fields, not 2"),
        ("item_id,tokens\n", "1 to 8 tokens|no item"),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, content: str, message: str):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InvalidCatalogue, match=message):
        read_item_rows(tmp_path / "a.csv")


def test_wrong_use_ends_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_rec(["build-items", str(tmp_path / "no.csv"), str(tmp_path / "out")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("item_id,tokens\n7,1 2 3\n")
    assert run_rec(["build-items", str(tmp_path / "a.csv"), str(tmp_path / "no" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert run_rec(["build-items", str(tmp_path / "a.csv"), str(tmp_path / "out"), "--vocab-size", "3"]) == 2
