"""One round of beam search on the CPU: which tokens the best paths take next. Knows nothing of models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xllm_kernels import _C

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
_NO_TOKENS = np.empty(0, np.int32)


class SelectedBeams(NamedTuple):
    """N new beams, request after request, best first."""

    parents: Int32s
    """[N]: the input rows that they continue."""
    token_ids: Int32s
    """[N]"""
    nodes: Int32s
    """[N]: where their paths stand; -1 where there is no path, or every token may follow."""
    logprobs: Float32s
    """[N], of the tokens."""
    scores: Float32s
    """[N]: sums of log-probabilities; -infinity where a request has fewer paths than beams."""


class LevelPaths(NamedTuple):
    """Which tokens may follow the nodes of one level: tokens[starts[n]:starts[n + 1]], ascending, for node n.

    The number of such an entry is the node that it leads to.
    """

    starts: Int32s
    tokens: Int32s


def beam_select(
    logits: Float32s, scores: Float32s, nodes: Int32s, paths: LevelPaths | None, row_start: Int32s, out_start: Int32s
) -> SelectedBeams:
    """Return the best continuations of each request's beams.

    logits: [W, vocab]; scores: [W], -infinity for a row without a path; nodes: [W], -1 likewise, of no meaning where
    `paths` is None: then every token may follow; request s owns rows [row_start[s], row_start[s + 1]) and gets as many
    beams as out_start[s + 1] - out_start[s]. A score grows by the token's log-probability over the whole vocabulary.
    Where scores are equal, the better row is first, then the smaller token. Not a number is never chosen.
    Raises ValueError or TypeError naming the argument.
    """
    num_beams = int(out_start[-1])
    parents, token_ids, next_nodes = (np.empty(num_beams, np.int32) for _ in range(3))
    logprobs, next_scores = (np.empty(num_beams, np.float32) for _ in range(2))
    selected = SelectedBeams(parents, token_ids, next_nodes, logprobs, next_scores)
    starts, tokens = (_NO_TOKENS, _NO_TOKENS) if paths is None else paths
    _C.beam_select(logits, scores, nodes, starts, tokens, row_start, out_start, *selected)
    return selected
