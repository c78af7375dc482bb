"""The tower of LLaVA-OneVision: SigLIP over tiles of any resolution, two layers behind it, and what ends a row.

The embeddings of a picture are those of the whole, then those of its tiles put together, without what stands for padding and
with a row end behind each row. A picture among several in a conversation is one tile; so is each frame of a video, whose
features are shrunk to a quarter. Knows nothing of when the tower runs, or of the language model.
Source: LLaVA-OneVision (Li et al., 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_framework.multimodal import MediaItem
from xllm_framework.multimodal.anyres import best_resolution, reduced_shape, unpadded
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets, fill_targets, whole_parameter
from xllm_runtime.models.vlm.interface import Frames
from xllm_runtime.models.vlm.siglip import SiglipTower, siglip_args

_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.image_newline", "image_newline"),
)
_OWN = ("vision_tower.", "multi_modal_projector.", "image_newline")
_UNUSED = ("vision_tower.vision_model.post_layernorm.", "vision_tower.vision_model.head.")


class LlavaOnevisionTower(nn.Module):
    """`MediaTower`; see the module."""

    num_levels = 1

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self._args = args
        self._vision = siglip_args(args.raw.get("vision_config") or {})
        layer = int(args.raw.get("vision_feature_layer", -1))
        num_layers = self._vision.num_layers + 1 + layer if layer < 0 else layer
        self.siglip = SiglipTower(self._vision, num_layers, dtype)
        hidden = args.hidden_size
        self.linear_1 = Linear(self._vision.hidden_size, [("linear_1", hidden)], has_bias=True, dtype=dtype)
        self.linear_2 = Linear(hidden, [("linear_2", hidden)], has_bias=True, dtype=dtype)
        self.image_newline = nn.Parameter(torch.empty(hidden, dtype=dtype), requires_grad=False)

    def encode(self, items: Sequence[MediaItem], frames: Frames) -> list[torch.Tensor]:
        """See `Encodes.encode`; a picture's grid is (tiles, height, width), its size before resizing."""
        tiles = [frames(item) for item in items]
        features = self.linear_2(F.gelu(self.linear_1(self.siglip(torch.cat(tiles)))))
        parts = torch.split(features, [len(item) for item in tiles])
        return [
            self._shrunk(part) if item.kind == "video" else self._packed(part, item.grid[1:])
            for part, item in zip(parts, items, strict=True)
        ]

    def owns_weight(self, name: str) -> bool:
        """See `MediaTower.owns_weight`."""
        return _renamed(name).startswith(_OWN)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `MediaTower.load_weights`."""
        own = (pair for pair in weights if self.owns_weight(pair[0]))
        fill_targets(self.weight_targets(), renamed_weights(own), self.ignores_weight)

    def weight_targets(self) -> WeightTargets:
        """Yield the tensors, by the names of `renamed_weights`."""
        yield from self.siglip.weight_targets("vision_tower.vision_model")
        yield from self.linear_1.weight_targets("multi_modal_projector")
        yield from self.linear_2.weight_targets("multi_modal_projector")
        yield whole_parameter("image_newline", self, "image_newline")

    def ignores_weight(self, name: str) -> bool:
        """Whether a tensor of the tower is not computed with: what lies behind the layer whose features are taken."""
        layer = name.removeprefix("vision_tower.vision_model.encoder.layers.").partition(".")[0]
        return name.startswith(_UNUSED) or (layer.isdigit() and int(layer) >= len(self.siglip.layers))

    def _packed(self, tiles: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Make [E, hidden] of the features of one picture's tiles [N, side^2, hidden]."""
        newline = self.image_newline
        if len(tiles) == 1:
            return torch.cat((tiles[0], newline[None]))
        side = self._vision.side
        resolution = best_resolution(size, self._args.raw["image_grid_pinpoints"])
        rows, columns = (length // self._vision.image_size for length in resolution)
        whole = tiles[1:].view(rows, columns, side, side, -1).permute(4, 0, 2, 1, 3)
        whole = whole.reshape(-1, rows * side, columns * side)
        kept_rows, kept_columns = unpadded(size, rows * side, columns * side)
        whole = whole[:, kept_rows, kept_columns]
        max_tiles = int(str(self._args.raw.get("vision_aspect_ratio", "anyres_max_9")).removeprefix("anyres_max_"))
        shape = reduced_shape(whole.shape[1], whole.shape[2], side, max_tiles)
        if shape != whole.shape[1:]:
            whole = F.interpolate(whole[None], shape, mode="bilinear")[0]
        ends = newline[:, None, None].expand(-1, whole.shape[1], 1)
        return torch.cat((tiles[0], torch.cat((whole, ends), -1).flatten(1).T))

    def _shrunk(self, frames: torch.Tensor) -> torch.Tensor:
        """Make [E, hidden] of the features of a video's frames [N, side^2, hidden]."""
        side, half = self._vision.side, math.ceil(self._vision.side / 2)
        pictures = frames.transpose(1, 2).reshape(len(frames), -1, side, side)
        shrunk = F.interpolate(pictures, (half, half), mode="bilinear")
        return torch.cat((shrunk.flatten(2).transpose(1, 2).flatten(0, 1), self.image_newline[None]))


def renamed_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors under one set of names, whichever release wrote them."""
    for name, tensor in weights:
        yield _renamed(name), tensor


def _renamed(name: str) -> str:
    prefix, replacement = next((pair for pair in _PREFIXES if name.startswith(pair[0])), ("", ""))
    name = replacement + name.removeprefix(prefix)
    if name.startswith("vision_tower.") and not name.startswith("vision_tower.vision_model."):
        name = name.replace("vision_tower.", "vision_tower.vision_model.", 1)
    return name
