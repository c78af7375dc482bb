"""Tool-call parsers of formats whose arguments are JSON: golden outputs, cut at every place."""

from __future__ import annotations

import pytest

from support.parser_driving import Answer, cut_everywhere, parse_calls
from support.tool_call_texts import CASES, Case

GOLDEN = [pytest.param(name, case, id=f"{name}-{case[0]}") for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), GOLDEN)
def test_whole_text(name: str, case: Case) -> None:
    _, text, content, calls = case
    assert parse_calls(name, [text]) == Answer(content, calls)


@pytest.mark.parametrize(("name", "case"), GOLDEN)
def test_every_cut_gives_the_whole(name: str, case: Case) -> None:
    _, text, content, calls = case
    for pieces in cut_everywhere(text):
        assert parse_calls(name, pieces) == Answer(content, calls), pieces
