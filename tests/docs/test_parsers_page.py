"""docs/reference/parsers.md names every parser there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parsers.md"


def test_the_page_names_every_parser() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    for title, table in (("Tool calls", TOOL_CALL_PARSERS), ("Reasoning", REASONING_PARSERS)):
        section = sections[sections.index(title) + 1]
        rows = [line.split(" | ")[:2] for line in section.splitlines() if line.startswith("| `")]
        named = {
            name: row[0].strip("| `")
            for row in rows
            for cell in row
            for name in re.findall(r"`([^`<\[\u25c1]+)`", cell)
        }
        assert sorted(named) == table.names
        assert all(table.resolve(name) == parser for name, parser in named.items())
