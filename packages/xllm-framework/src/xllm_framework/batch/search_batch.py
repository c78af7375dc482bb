"""The searches that run together from prefill to the last round, as arrays. Numpy only; knows nothing of devices or models."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.forward_input import ForwardInput
from xllm_framework.rec.valid_paths import ValidPaths


@dataclass(frozen=True, slots=True)
class DrawRows:
    """How one search draws."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


@dataclass(slots=True)
class SearchBatch:
    """S searches of the same number of rounds; their beams may differ in number."""

    prefills: list[ForwardInput]
    """Steps that compute the prompts; each request has one sampled row in them, in the order of the requests."""
    prompt_lens: npt.NDArray[np.int32]
    """[S]"""
    block_tables: npt.NDArray[np.int32]
    """[S, B], of the prompts."""
    prompts: list[npt.NDArray[np.int32]]
    """[S]: token ids."""
    widths: npt.NDArray[np.int32]
    """[S]: beams of each."""
    num_rounds: int
    paths: ValidPaths | None
    """Where tokens may go; None lets every token follow."""
    draws: list[DrawRows | None] = field(default_factory=list)
    """[S] where searches are sampled, else empty."""
    tensors: list[dict[str, npt.NDArray[np.generic]]] = field(default_factory=list)
    """[S]: the arrays that each search brings, by name."""

    @property
    def num_requests(self) -> int:
        """S."""
        return len(self.prompt_lens)

    @property
    def num_beams(self) -> int:
        """Beams of all searches together."""
        return int(self.widths.sum())


@dataclass(frozen=True, slots=True)
class FoundBeams:
    """The paths of one search."""

    token_ids: npt.NDArray[np.int32]
    """[n, num_rounds]"""
    logprobs: npt.NDArray[np.float32]
    """[n, num_rounds]"""
    scores: npt.NDArray[np.float32]
    """[n]"""
    nodes: npt.NDArray[np.int32]
    """[n]: where the paths end; leaves when the tree is as deep as there were rounds. -1 without a tree."""
