"""Writes down what the scheduler decided, compactly, so that a refactor can be compared. Knows nothing of why.

One line a step. `n:start+count` is a prefill chunk of request n; the numbers after `|` are the requests that decode, as
ranges. Steps that differ in nothing but lengths are one line with `xK` at its end.
"""

from __future__ import annotations

from xllm_framework.batch import Batch, BatchGroup
from xllm_framework.request import SequenceStatus


class DecisionLog:
    """Collects steps; its `add` is what `simulate` takes as `on_step`. Request ids must end with `-number`."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._repeats: list[int] = []

    def add(self, group: BatchGroup) -> None:
        """Note one step, before it runs."""
        line = " || ".join(_batch_text(batch) for batch in group.batches)
        if self._lines and self._lines[-1] == line:
            self._repeats[-1] += 1
        else:
            self._lines.append(line)
            self._repeats.append(1)

    def to_text(self) -> str:
        """Return all lines."""
        return "".join(
            f"{line}{f' x{count}' if count > 1 else ''}\n"
            for line, count in zip(self._lines, self._repeats, strict=True)
        )


def _batch_text(batch: Batch) -> str:
    chunks, decodes = [], []
    for item in batch:
        number = int(item.sequence.request_id.rpartition("-")[2])
        if item.sequence.status is SequenceStatus.DECODE:
            decodes.append(number)
        else:
            chunks.append(f"{number}:{item.start}+{item.num_scheduled_tokens}")
    return f"{' '.join(chunks)} | {_ranges(decodes)}".strip()


def _ranges(numbers: list[int]) -> str:
    """Return `3 5-9` for [3, 5, 6, 7, 8, 9], in the given order."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
