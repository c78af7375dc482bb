"""Searches on one rank: prefill, then every round, in one call. Knows nothing of requests, text, scheduling or threads.

    logits of the prompts' last tokens
    for each round:  the best tokens of all beams of a request;  one forward pass of all beams   (not after the last round)

What a model computes is behind `BeamModel`, how tokens are chosen behind `Choose`: this file only carries paths along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.search_batch import FoundBeams, SearchBatch
from xllm_kernels.ops.beam_select import SelectedBeams

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
NumberT = TypeVar("NumberT", np.int32, np.float32)


@dataclass(frozen=True, slots=True)
class Beams:
    """The living paths of all searches after t rounds, W in all, search after search, best first."""

    row_start: Int32s
    """[S + 1]: search s owns rows [row_start[s], row_start[s + 1])."""
    token_ids: Int32s
    """[W, t]"""
    logprobs: Float32s
    """[W, t]"""
    scores: Float32s
    """[W]"""
    nodes: Int32s
    """[W]: where the paths stand in the tree."""
    ancestors: Int32s
    """[W, t]: the row that each path had in round i, where the KV of its token i lies; its own row in the last."""

    @classmethod
    def roots(cls, num_requests: int) -> Beams:
        """Return the beginning: one empty path a search."""
        nothing = np.empty((num_requests, 0), np.int32)
        zeros = np.zeros(num_requests, np.float32)
        rows = np.arange(num_requests + 1, dtype=np.int32)
        return cls(rows, nothing, nothing.astype(np.float32), zeros, np.zeros(num_requests, np.int32), nothing)

    def follow(self, selected: SelectedBeams, out_start: Int32s) -> Beams:
        """Return the paths one token longer; outputs without a path are dropped."""
        alive = np.flatnonzero(selected.scores > -np.inf)
        parents = selected.parents[alive]
        rows = np.arange(len(alive), dtype=np.int32)
        return Beams(
            np.searchsorted(alive, out_start).astype(np.int32),
            _with_column(self.token_ids[parents], selected.token_ids[alive]),
            _with_column(self.logprobs[parents], selected.logprobs[alive]),
            selected.scores[alive],
            selected.nodes[alive],
            _with_column(self.ancestors[parents], rows),
        )

    def by_search(self) -> list[FoundBeams]:
        """Return the paths of each search."""
        bounds = zip(self.row_start[:-1].tolist(), self.row_start[1:].tolist(), strict=True)
        return [
            FoundBeams(self.token_ids[b:e], self.logprobs[b:e], self.scores[b:e], self.nodes[b:e]) for b, e in bounds
        ]


class BeamModel(Protocol):
    """A model with the KV of a batch's prompts, and room for that of the beams. One batch at a time."""

    def prefill(self, batch: SearchBatch) -> Float32s:
        """Compute the prompts; return the logits of their last tokens [S, vocab]."""

    def step(self, batch: SearchBatch, beams: Beams) -> Float32s:
        """Compute the newest token of every beam; return logits [W, vocab], which the next call may overwrite."""


class Searcher(Protocol):
    """Runs whole batches. Several may share a worker, each on a thread of its own."""

    def search(self, batch: SearchBatch) -> list[FoundBeams]:
        """Return what each search found. Raises whatever the model raises."""


class RecWorker(Protocol):
    """One rank: a device with a model, which constructing it loads. `allocate_kv_cache` comes before `open_searcher`."""

    model_impl: str
    device: str
    dtype: str
    vocab_size: int

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""

    def open_searcher(self) -> Searcher:
        """Return another pipeline."""


Choose = Callable[[int, Float32s, Beams, SearchBatch, Int32s], SelectedBeams]
"""(round, logits, beams, batch, out_start) -> the next beams."""


def run_rounds(model: BeamModel, batch: SearchBatch, choose: Choose) -> list[FoundBeams]:
    """Search `batch` to its end."""
    out_start = np.concatenate([[0], np.cumsum(batch.widths)]).astype(np.int32)
    beams = Beams.roots(batch.num_requests)
    logits = model.prefill(batch)
    for index in range(batch.num_rounds):
        if index:
            logits = model.step(batch, beams)
        beams = beams.follow(choose(index, logits, beams, batch, out_start), out_start)
    return beams.by_search()


def beam_positions(batch: SearchBatch, beams: Beams) -> Int32s:
    """Return the positions of the beams' newest tokens, [W]."""
    prompt_lens: Int32s = np.repeat(batch.prompt_lens, np.diff(beams.row_start))
    positions: Int32s = (prompt_lens + (beams.token_ids.shape[1] - 1)).astype(np.int32)
    return positions


def _with_column(rows: npt.NDArray[NumberT], column: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
    return np.concatenate([rows, column[:, None]], axis=1)
