"""Broken GGUF files are refused with one of our errors, or load; nothing else is raised, and the process lives on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.broken_gguf import broken_models, load, tiny_model


def test_the_whole_model_loads(tmp_path: Path) -> None:
    assert load(tiny_model(), tmp_path / "model.gguf")


@pytest.mark.parametrize("seed", range(4))
def test_broken_models_are_refused_or_load(tmp_path: Path, seed: int) -> None:
    outcomes = [load(content, tmp_path / f"{i}.gguf") for i, content in enumerate(broken_models(60, seed))]
    assert outcomes.count(False) > 20
