"""Writes docs/reference/options.md from the option classes: `python tests/docs/write_options.py`."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from xllm_framework.config import XLLMConfig

TARGET = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def field_docs(section: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(section)).body[0].body
    docs = {}
    for statement, following in itertools.pairwise(body):
        is_doc = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(statement, ast.AnnAssign) and is_doc:
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def render() -> str:
    lines = [
        "# Options",
        "",
        'On the command line `--block-size 32` (dashes or underscores), in a JSON file (`--config`) `{"block_size": 32}`,',
        "in the environment `XLLM_BLOCK_SIZE=32`.",
        "An explicit command-line value wins over the file, the file over the environment, the environment over the default.",
    ]
    hints = get_type_hints(XLLMConfig)
    for category in fields(XLLMConfig):
        section = hints[category.name]
        docs = field_docs(section)
        types = inspect.get_annotations(section)
        lines += ["", f"## {category.name}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        for option in fields(section):
            kind = str(types[option.name]).replace("|", "\\|")
            lines.append(
                f"| `{option.name}` | {kind} | `{option.default!r}` | {docs[option.name]} |".replace("`''`", "empty")
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
