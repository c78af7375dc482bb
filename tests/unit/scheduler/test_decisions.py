"""Decisions on fixed traces equal the recorded ones, so that a refactor is seen to change nothing."""

from __future__ import annotations

import pytest

from support.decision_cases import CASES, FOLDER, decide
from xllm_framework.batch import Batch, BatchGroup, ScheduledSequence
from xllm_framework.request import Request, SamplingParams, SequenceStatus
from xllm_scheduler.simulator import DecisionLog


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_the_recorded_ones(name: str) -> None:
    recorded = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    decided = decide(name).splitlines()
    for number, (expected, actual) in enumerate(zip(recorded, decided, strict=False), 1):
        assert actual == expected, f"line {number}; if this is meant: python tests/support/decision_cases.py"
    assert len(decided) == len(recorded)


def test_no_recorded_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)


def test_a_log_lists_chunks_and_ranges_of_decodes_and_counts_repeats() -> None:
    log = DecisionLog()
    batch = Batch()
    for number in (1, 2, 3, 5):
        request = Request(f"request-{number}", [1] * 9, SamplingParams(), arrival_time_s=0.0)
        request.sequences[0].status = SequenceStatus.DECODE if number < 4 else SequenceStatus.PREFILL
        batch.add(ScheduledSequence(request, request.sequences[0], 0, 1 if number < 4 else 9))
    for _ in range(3):
        log.add(BatchGroup((batch,)))
    log.add(BatchGroup((batch, Batch())))
    assert log.to_text() == "5:0+9 | 1-3 x3\n5:0+9 | 1-3 || |\n"
