"""What a worker returns for one `ForwardInput`. Knows nothing of sequences: rows keep the input's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class ForwardOutput:
    """Sampled tokens of R sampled rows, in the order of `ForwardInput.sample_rows`."""

    token_ids: npt.NDArray[np.int32]
    """int32 [R]; -1 where `errors` names the row."""
    logprobs: npt.NDArray[np.float32] | None = None
    """float32 [R], log-probability of each sampled token; None when no row asked."""
    top_ids: npt.NDArray[np.int32] | None = None
    """int32 [R, K], K the largest `num_logprobs` of the batch; best first."""
    top_logprobs: npt.NDArray[np.float32] | None = None
    """float32 [R, K]."""
    prompt_logprobs: (
        dict[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.float32]]] | None
    ) = None
    """By index of the scheduled sequence: (logprob [T-], top ids [T-, K], top logprobs [T-, K]) of the tokens that follow
    each of its scheduled positions inside the prompt."""
    pooled: dict[int, npt.NDArray[np.float32]] | None = None
    """By index of the scheduled sequence: see `PooledRows`."""
    num_encoded_media: int = 0
    """Images and videos that went through the vision tower in this step."""
    num_cached_media: int = 0
    """Images and videos whose embeddings were still there."""
    errors: dict[int, str] | None = None
    """By index of the sampled row: why it has no token (logits that are not finite)."""
