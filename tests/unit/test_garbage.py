"""What is loaded is kept out of garbage collections: for good in a process of ours, for a while in somebody else's."""

from __future__ import annotations

import gc

import pytest

from xllm_runtime.garbage import spare_what_is_loaded, sparing_what_is_loaded


@pytest.fixture(autouse=True)
def _as_before():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_for_a_while():
    with sparing_what_is_loaded():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_also_when_the_work_fails():
    with pytest.raises(ValueError, match="work"), sparing_what_is_loaded():
        raise ValueError("work")
    assert gc.get_freeze_count() == 0


def test_what_the_process_has_frozen_stays_so():
    spare_what_is_loaded()
    frozen = gc.get_freeze_count()
    with sparing_what_is_loaded():
        pass
    assert gc.get_freeze_count() >= frozen > 1000


@pytest.mark.parametrize(("frozen", "freezes"), [(0, True), (375, True), (200_000, False)])
def test_what_an_interpreter_keeps_out_by_itself_does_not_count(monkeypatch, frozen, freezes):
    calls = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    with sparing_what_is_loaded():
        assert calls == ["freeze"] * freezes
    assert calls == ["freeze", "unfreeze"] * freezes
