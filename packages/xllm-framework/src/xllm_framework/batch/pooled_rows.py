"""Which rows of a step pooling requests want. Knows nothing of what the rows hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.batch import ScheduledSequence
from xllm_framework.multimodal.media_item import MediaItem


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows [first, end) of a step's hidden states, wanted by the scheduled sequence `index`.

    Its entry in `ForwardOutput.pooled` is their sum [hidden], or, where there are `logit_ids`, the head's outputs of
    these indices [len(logit_ids)] at the one row; float32.
    """

    index: int
    first: int
    end: int
    logit_ids: tuple[int, ...] = ()
    items: Sequence[MediaItem] = ()
    """Where there are any, the entry is their embeddings instead, one after the other, and the rows mean nothing."""


def pooled_rows(scheduled: Sequence[ScheduledSequence], query_start: npt.NDArray[np.int32]) -> list[PooledRows]:
    """Return what the sequences of a step want of it; nothing of a chunk that holds none of the wanted positions."""
    wanted = []
    for index, item in enumerate(scheduled):
        pooling = item.request.pooling
        if pooling is None:
            continue
        first, end = int(query_start[index]), int(query_start[index + 1])
        if pooling.kind == "mean":
            wanted.append(PooledRows(index, first, end))
        elif pooling.kind == "cls" and item.start == 0:
            wanted.append(PooledRows(index, first, first + 1))
        elif pooling.kind in ("last", "media") and item.start + item.num_scheduled_tokens == item.sequence.num_tokens:
            media = item.request.media
            items = media.items if pooling.kind == "media" and media is not None else ()
            wanted.append(PooledRows(index, end - 1, end, pooling.logit_ids, items))
    return wanted
