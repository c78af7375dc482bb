"""The walk that sanitizers watch (`benchmarks/gpu_walk.py`) leaves out no kernel of the module, and fails nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu


def test_every_kernel_is_walked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from gpu_walk import never_started

    left, count = never_started(["bfloat16", "float16"])
    assert count > 100
    assert "failed" not in capsys.readouterr().out
    assert left == []
