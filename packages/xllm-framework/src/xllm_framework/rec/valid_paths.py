"""Which tokens may follow which: a tree of all items' tokens, as compressed rows for each level.

A node of level l stands for the first l tokens of some items; level 0 has the root alone. The children of node n at level l
are the edges [starts[l][n], starts[l][n + 1]), with ascending tokens[l]; the edge itself is the number of the child at level
l + 1. So a beam carries one number, and following a token costs no search. Knows nothing of scores or of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DEAD_NODE = -1
"""The node of a beam that has no path: it has no children."""


@dataclass(frozen=True, slots=True)
class ValidPaths:
    """See the module."""

    starts: tuple[npt.NDArray[np.int32], ...]
    """By level, [nodes + 1]."""
    tokens: tuple[npt.NDArray[np.int32], ...]
    """By level, [edges]: the token of each."""

    @property
    def num_levels(self) -> int:
        """Tokens of a whole path."""
        return len(self.tokens)

    @property
    def num_leaves(self) -> int:
        """Whole paths."""
        return len(self.tokens[-1])

    def most_children(self, level: int) -> int:
        """Return the largest number of children that a node of `level` has."""
        return int(np.diff(self.starts[level]).max())

    def children(self, level: int, node: int) -> npt.NDArray[np.int32]:
        """Return the tokens that may follow `node`, ascending; none for a dead one."""
        if node == DEAD_NODE:
            return self.tokens[level][:0]
        return self.tokens[level][self.starts[level][node] : self.starts[level][node + 1]]

    def follow(self, level: int, node: int, token: int) -> int:
        """Return the node of `level` + 1 that `token` leads to, or `DEAD_NODE`."""
        children = self.children(level, node)
        at = int(np.searchsorted(children, token))
        if at == len(children) or children[at] != token:
            return DEAD_NODE
        return int(self.starts[level][node]) + at

    def find(self, tokens: npt.ArrayLike) -> int:
        """Return the node at the end of `tokens`, or `DEAD_NODE` where no item begins so."""
        node = 0
        for level, token in enumerate(np.asarray(tokens).tolist()):
            node = self.follow(level, node, token)
        return node


def build_paths(tokens: npt.NDArray[np.int32]) -> tuple[ValidPaths, npt.NDArray[np.int32]]:
    """Return the tree of the rows of `tokens` [N, L], and the leaf of each row, int32 [N]; O(N log N)."""
    num_rows, num_levels = tokens.shape
    order = np.lexsort(tokens.T[::-1])
    ordered = tokens[order]
    is_new = np.zeros(num_rows, bool)
    is_new[0] = True
    node_of = np.zeros(num_rows, np.int64)
    starts, edge_tokens = [], []
    for level in range(num_levels):
        is_new[1:] |= ordered[1:, level] != ordered[:-1, level]
        num_nodes = int(node_of[-1]) + 1
        counts = np.bincount(node_of[is_new], minlength=num_nodes)
        starts.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        edge_tokens.append(ordered[is_new, level].astype(np.int32))
        node_of = np.cumsum(is_new) - 1
    leaves = np.empty(num_rows, np.int32)
    leaves[order] = node_of
    return ValidPaths(tuple(starts), tuple(edge_tokens)), leaves
