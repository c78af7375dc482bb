"""Embeddings of images and videos as they leave the engine side, cut into those of each medium. Knows nothing of JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.multimodal.media_item import MediaKind
from xllm_framework.request import RequestOutput
from xllm_runtime.master.pooling_requests import pooled_vector
from xllm_runtime.master.prepared_request import PreparedRequest


@dataclass(frozen=True, slots=True)
class MediaEmbedding:
    """What a vision tower made of one medium; `processors.embedded_media` says how it comes back in a request."""

    kind: MediaKind
    values: npt.NDArray[np.float32]
    """[E, width]: one row a token that stands for it."""
    grid: tuple[int, int, int]
    """Patches in time, height and width; what positions follow."""
    timestamps: tuple[float, ...] = ()
    """Seconds of each frame of a video's grid."""


def media_embeddings(prepared: PreparedRequest, output: RequestOutput) -> list[MediaEmbedding]:
    """Return the embeddings of the media of `prepared`, made by `VLMMaster.prepare_media_embedding`, in their order."""
    media = prepared.message.media
    items = [] if media is None else media.items
    counts = [item.num_embeddings for item in items]
    rows = pooled_vector(output).reshape(sum(counts), -1)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return [
        MediaEmbedding(item.kind, part, item.grid, item.timestamps) for item, part in zip(items, parts, strict=True)
    ]
