"""`xllm-server rec build-items IN OUT`: from a CSV or Parquet table to the binary item file. Knows nothing of serving."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from xllm_framework.errors import XLLMError
from xllm_framework.rec import Catalogue, write_items
from xllm_framework.rec.item_rows import read_item_rows

EXIT_OK = 0
EXIT_USAGE = 2


def run_rec(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, or 2 for a table that makes no catalogue."""
    parser = argparse.ArgumentParser(prog="xllm-server rec", description="Work on catalogues of the rec backend.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build-items", help="write an item file from a CSV or Parquet table")
    build.add_argument("table", type=Path, help="columns: item_id, tokens or token_0..., and perhaps document_id, type")
    build.add_argument("item_file", type=Path, help="written anew, whole or not at all")
    build.add_argument("--vocab-size", type=int, help="check that a model of so many tokens has all of them")
    given = parser.parse_args(arguments)
    try:
        print(_build_items(given.table, given.item_file, given.vocab_size))
    except XLLMError as error:
        print(error.message, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"The file {given.item_file} cannot be written: {error.strerror}.", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK


def _build_items(table: Path, item_file: Path, vocab_size: int | None) -> str:
    """Write the file and return a line that says what it holds."""
    items = read_item_rows(table)
    if vocab_size is not None:
        items.check_vocabulary(vocab_size)
    write_items(item_file, items)
    form = "extended" if items.document_ids is not None or items.kinds is not None else "simple"
    num_paths = Catalogue.of(items).paths.num_leaves
    return (
        f"Wrote {items.num_items} items of {items.tokens_per_item} tokens to {item_file} ({form} form); "
        f"{num_paths} different token lists."
    )
