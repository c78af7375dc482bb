"""One round of beam search in numpy: all candidates, one full sort. Knows nothing of models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_kernels.ops.beam_select import Float32s, Int32s, LevelPaths, SelectedBeams

NO_PATH = np.float32(-np.inf)


def beam_select(
    logits: Float32s, scores: Float32s, nodes: Int32s, paths: LevelPaths | None, row_start: Int32s, out_start: Int32s
) -> SelectedBeams:
    """As `xllm_kernels.ops.beam_select`."""
    wide = logits.astype(np.float64)
    highest = wide.max(axis=1)
    normalisers = highest + np.log(np.exp(wide - highest[:, None]).sum(axis=1))
    chosen: list[tuple[float, int, int, int, float]] = []
    for s in range(len(row_start) - 1):
        candidates = []
        for row in range(row_start[s], row_start[s + 1]):
            entries, tokens = _candidates(int(nodes[row]), paths, logits.shape[1])
            logprobs = (wide[row, tokens] - normalisers[row]).astype(np.float32)
            totals = scores[row] + logprobs
            found = zip(totals.tolist(), entries.tolist(), tokens.tolist(), logprobs.tolist(), strict=True)
            candidates += [(total, row, *rest) for total, *rest in found if total > NO_PATH]
        candidates.sort(key=lambda item: (-item[0], item[1], item[3]))
        num_beams = int(out_start[s + 1] - out_start[s])
        missing = [(float(NO_PATH), int(row_start[s]), -1, 0, 0.0)] * num_beams
        chosen += [*candidates[:num_beams], *missing[len(candidates) :]]
    return SelectedBeams(
        np.array([parent for _, parent, _, _, _ in chosen], np.int32),
        np.array([token for _, _, _, token, _ in chosen], np.int32),
        np.array([-1 if paths is None else entry for _, _, entry, _, _ in chosen], np.int32),
        np.array([logprob for _, _, _, _, logprob in chosen], np.float32),
        np.array([total for total, _, _, _, _ in chosen], np.float32),
    )


def _candidates(node: int, paths: LevelPaths | None, vocab_size: int) -> tuple[npt.NDArray[np.int64], Int32s]:
    """Return (entries, tokens) that may follow a node."""
    if paths is None:
        return np.arange(vocab_size), np.arange(vocab_size, dtype=np.int32)
    if node < 0:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    begin, end = int(paths.starts[node]), int(paths.starts[node + 1])
    return np.arange(begin, end), paths.tokens[begin:end]
