"""How the next tokens of beams are chosen on the CPU: the best, or by chance. Knows nothing of models.

Drawn numbers depend on a search's seed, the round and the path's number alone: a seeded search finds the same paths whoever
shares its batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.search_batch import DrawRows, SearchBatch
from xllm_framework.rec.valid_paths import ValidPaths
from xllm_kernels import ops, reference
from xllm_kernels.ops.beam_select import LevelPaths, SelectedBeams
from xllm_runtime.worker.rec import Beams, Choose, Float32s, Int32s


def chooser(batch: SearchBatch, *, is_fast: bool) -> Choose:
    """Return how `batch` chooses; `is_fast` takes the kernels, else plain numpy."""
    if batch.draws:
        return draw
    return choose_best if is_fast else choose_best_by_sorting


def choose_best(index: int, logits: Float32s, beams: Beams, batch: SearchBatch, out_start: Int32s) -> SelectedBeams:
    """Take the most probable continuations, with the kernel."""
    paths = level_paths(batch.paths, index)
    return ops.beam_select(logits, beams.scores, beams.nodes, paths, beams.row_start, out_start)


def choose_best_by_sorting(
    index: int, logits: Float32s, beams: Beams, batch: SearchBatch, out_start: Int32s
) -> SelectedBeams:
    """Take the most probable continuations, with numpy."""
    paths = level_paths(batch.paths, index)
    return reference.beam_select(logits, beams.scores, beams.nodes, paths, beams.row_start, out_start)


def level_paths(paths: ValidPaths | None, index: int) -> LevelPaths | None:
    """Return the part of the tree that round `index` looks at."""
    return None if paths is None else LevelPaths(paths.starts[index], paths.tokens[index])


def draw(index: int, logits: Float32s, beams: Beams, batch: SearchBatch, out_start: Int32s) -> SelectedBeams:
    """Continue every path by a token drawn from what may follow it; the first round draws all of a search's paths."""
    columns: tuple[list[int], ...] = ([], [], [])
    logprobs, scores = [], []
    for search, rows in enumerate(batch.draws):
        assert rows is not None, "a batch draws for all of its searches or for none"
        first, end = int(beams.row_start[search]), int(beams.row_start[search + 1])
        width = int(batch.widths[search])
        numbers = np.random.Generator(np.random.Philox(key=rows.seed, counter=[0, 0, 0, index])).random(width)
        parents = [first] * width if index == 0 else list(range(first, end))
        of_row = {row: _Distribution(index, row, logits, beams, batch.paths, rows) for row in set(parents)}
        for parent, number in zip(parents, numbers.tolist(), strict=True):
            token_id, node, logprob = of_row[parent].draw(number)
            for column, value in zip(columns, (parent, token_id, node), strict=True):
                column.append(value)
            logprobs.append(logprob)
            scores.append(float(beams.scores[parent]) + logprob)
    parent_rows, token_ids, nodes = (np.array(column, np.int32) for column in columns)
    return SelectedBeams(parent_rows, token_ids, nodes, np.array(logprobs, np.float32), np.array(scores, np.float32))


class _Distribution:
    """What may follow one row, most probable first, and how probable it is among itself."""

    def __init__(
        self, index: int, row: int, logits: Float32s, beams: Beams, paths: ValidPaths | None, rows: DrawRows
    ) -> None:
        wide = logits[row].astype(np.float64)
        wide -= wide.max()
        logprobs = wide - np.log(np.exp(wide).sum())
        self._entries: npt.NDArray[np.int64] | None = None
        self._tokens = np.arange(len(logprobs))
        if paths is not None:
            begin, end = paths.starts[index][beams.nodes[row] : beams.nodes[row] + 2]
            self._entries = np.arange(begin, end)
            self._tokens = paths.tokens[index][begin:end].astype(np.int64)
        order = np.argsort(-logprobs[self._tokens], kind="stable")
        if rows.top_k:
            order = order[: rows.top_k]
        weights = np.exp((logprobs[self._tokens[order]] - logprobs[self._tokens[order[0]]]) / rows.temperature)
        weights /= weights.sum()
        kept = int(np.searchsorted(np.cumsum(weights), rows.top_p)) + 1
        self._order, self._ends = order[:kept], np.cumsum(weights[:kept])
        self._logprobs = logprobs

    def draw(self, number: float) -> tuple[int, int, float]:
        """Return (token, node, log-probability over the whole vocabulary) for a number in [0, 1)."""
        at = min(int(np.searchsorted(self._ends, number * self._ends[-1], side="right")), len(self._order) - 1)
        choice = int(self._order[at])
        token = int(self._tokens[choice])
        return token, -1 if self._entries is None else int(self._entries[choice]), float(self._logprobs[token])
