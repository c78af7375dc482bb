"""Runs a vision tower on the media of a step, unless their embeddings are still there. Knows nothing of rows or requests.

Embeddings are kept by content hash, the ones used longest ago go first. Nothing depends on what is kept: a medium that a
step needs and that is gone is encoded again, and so a step can be repeated, whole or in parts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.multimodal import MediaItem
from xllm_runtime.models.vlm.interface import Encodes
from xllm_runtime.processors.settings import Normalisation


class MediaEncoder:
    """See the module.

    Args:
        max_bytes: of embeddings that are kept; an item with more is not kept.
    """

    def __init__(
        self,
        model: Encodes,
        normalisations: dict[str, Normalisation],
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int,
    ) -> None:
        self._model = model
        self._dtype, self._device = dtype, device
        self._scales = {
            kind: tuple(torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (norm.mean, norm.std))
            for kind, norm in normalisations.items()
        }
        self._factors = {kind: norm.factor for kind, norm in normalisations.items()}
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._max_bytes = max_bytes
        self.num_kept_bytes = 0
        self.num_encoded = 0
        """Items that went through the tower so far."""
        self.num_found = 0
        """Items that were still there when a step wanted them."""

    def __call__(self, items: Sequence[MediaItem]) -> dict[bytes, torch.Tensor]:
        """Return [E, levels * hidden] of each of `items` by content hash."""
        wanted = {item.content_hash: item for item in items}
        result = {}
        for content_hash in wanted.keys() & self._kept.keys():
            self._kept.move_to_end(content_hash)
            result[content_hash] = self._kept[content_hash]
        missing = [item for content_hash, item in wanted.items() if content_hash not in result]
        self.num_found += len(result)
        self.num_encoded += sum(not item.is_embedded for item in missing)
        given = [item for item in missing if item.is_embedded]
        result |= {item.content_hash: self._given(item) for item in given}
        pixels = [item for item in missing if not item.is_embedded]
        if pixels:
            for item, embeddings in zip(pixels, self._model.encode(pixels, self.frames), strict=True):
                result[item.content_hash] = embeddings
                self._keep(item.content_hash, embeddings)
        return result

    def flat(self, items: Sequence[MediaItem]) -> npt.NDArray[np.float32]:
        """Return the embeddings of `items` in host memory, row after row, one item after the other."""
        found = self(items)
        return torch.cat([found[item.content_hash].flatten() for item in items]).float().cpu().numpy()

    def frames(self, item: MediaItem) -> torch.Tensor:
        """Return the item's pixels, normalised: float32 [frames, 3, height, width] on the device."""
        pixels = torch.from_numpy(item.array().copy()).to(self._device).permute(0, 3, 1, 2)
        mean, std = self._scales[item.kind]
        return (pixels.float() * self._factors[item.kind] - mean) / std

    def _given(self, item: MediaItem) -> torch.Tensor:
        return torch.from_numpy(item.array().copy()).to(self._device, self._dtype)

    def _keep(self, content_hash: bytes, embeddings: torch.Tensor) -> None:
        if embeddings.nbytes > self._max_bytes:
            return
        self._kept[content_hash] = embeddings.clone()
        self.num_kept_bytes += embeddings.nbytes
        while self.num_kept_bytes > self._max_bytes:
            self.num_kept_bytes -= self._kept.popitem(last=False)[1].nbytes
