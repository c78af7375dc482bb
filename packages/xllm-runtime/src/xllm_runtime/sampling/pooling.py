"""The rows of hidden states that pooling requests want. Knows nothing of requests; what becomes of a prompt's vector is
decided where its chunks are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch.pooled_rows import PooledRows


def pool(
    hidden: torch.Tensor, wanted: Sequence[PooledRows], compute_logits: Callable[[torch.Tensor], torch.Tensor]
) -> dict[int, npt.NDArray[np.float32]]:
    """Return what each of `wanted` asks for, by scheduled index; `hidden` is [T, hidden] of the step.

    Single rows leave the device together.
    """
    singles = [rows for rows in wanted if rows.end - rows.first == 1]
    scored = [rows for rows in singles if rows.logit_ids]
    plain = [rows for rows in singles if not rows.logit_ids]
    pooled: dict[int, npt.NDArray[np.float32]] = {}
    if plain:
        vectors = hidden[[rows.first for rows in plain]].float().cpu().numpy()
        pooled |= {rows.index: vectors[place] for place, rows in enumerate(plain)}
    if scored:
        logits = compute_logits(hidden[[rows.first for rows in scored]]).cpu().numpy()
        pooled |= {rows.index: logits[place, list(rows.logit_ids)] for place, rows in enumerate(scored)}
    for rows in wanted:
        if rows.index not in pooled:
            pooled[rows.index] = hidden[rows.first : rows.end].float().sum(0).cpu().numpy()
    return pooled
