"""Qwen-Image's transformer (Wu et al., 2025): blocks of two streams with rotation in both. Knows nothing of prompts or steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.errors import UnsupportedModel
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets, fill_targets, whole_parameter
from xllm_runtime.models.dit.blocks import IMAGE_NAMES, TEXT_NAMES, BlockShape, JointBlock, StepContext, Stream
from xllm_runtime.models.dit.embeddings import TIMESTEP_FEATURES, TwoLayerEmbedding, sinusoidal
from xllm_runtime.models.dit.flux import THETA, top_level
from xllm_runtime.models.dit.modulation import Modulation
from xllm_runtime.models.dit.operations import NORM_EPS, Rotary, modulated_norm

UNSUPPORTED = ("guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope")
"""Settings of later models that change what is computed."""


class QwenImageTransformer(nn.Module):
    """See `Transformer`; `config` is the folder's config.json of diffusers' `QwenImageTransformer2DModel`.

    Raises:
        UnsupportedModel: the configuration asks for something that is not computed here.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        for setting in UNSUPPORTED:
            if config.get(setting):
                raise UnsupportedModel(f"Qwen-Image transformers with {setting} are not computed here.")
        self.dtype = dtype
        heads, head_size = config["num_attention_heads"], config["attention_head_dim"]
        size = heads * head_size
        shape = BlockShape(size, heads, head_size, True, dtype)
        self.axes: list[int] = list(config.get("axes_dims_rope") or (16, 56, 56))
        self.num_blocks: int = config["num_layers"]
        self.img_in = Linear(config["in_channels"], [("img_in", size)], has_bias=True, dtype=dtype)
        self.txt_in = Linear(config["joint_attention_dim"], [("txt_in", size)], has_bias=True, dtype=dtype)
        self.txt_norm = nn.Parameter(torch.empty(config["joint_attention_dim"], dtype=dtype), requires_grad=False)
        self.time = TwoLayerEmbedding(TIMESTEP_FEATURES, size, dtype)
        image, text = replace(IMAGE_NAMES, feed_forward="img_mlp"), replace(TEXT_NAMES, feed_forward="txt_mlp")
        self.blocks = nn.ModuleList(
            JointBlock(Stream(shape, image), Stream(shape, text)) for _ in range(self.num_blocks)
        )
        parts: list[tuple[str, int]] = []
        for index in range(self.num_blocks):
            parts += [(f"{_block(index)}.{stream}_mod.1", 6 * size) for stream in ("img", "txt")]
        self.modulation = Modulation(size, [*parts, ("norm_out.linear", 2 * size)], dtype)
        out_channels = config.get("out_channels") or config["in_channels"]
        rows = config["patch_size"] ** 2 * out_channels
        self.proj_out = Linear(size, [("proj_out", rows)], has_bias=True, dtype=dtype)

    def embed_text(self, text: torch.Tensor) -> torch.Tensor:
        """See `Transformer.embed_text`."""
        normed = F.rms_norm(text.to(self.dtype), text.shape[-1:], self.txt_norm, NORM_EPS)
        return self.txt_in(normed)  # type: ignore[no-any-return]

    def modulation_rows(self, condition: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """See `Transformer.modulation_rows`; the prompt has no part in it, and `condition` is ignored."""
        return self.modulation(self.time(sinusoidal(timesteps)))  # type: ignore[no-any-return]

    def start(
        self, tokens: torch.Tensor, text: torch.Tensor | None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Transformer.start`."""
        assert text is not None, "Qwen-Image always has a text"
        return torch.cat((text, self.img_in(tokens.to(self.dtype))), dim=1)

    def run(self, hidden: torch.Tensor, first: int, last: int, modulation: torch.Tensor, context: StepContext) -> None:
        """See `Transformer.run`."""
        for index in range(first, last):
            image = self.modulation.chunks(modulation, f"{_block(index)}.img_mod.1")
            text = self.modulation.chunks(modulation, f"{_block(index)}.txt_mod.1")
            self.blocks[index](hidden, image, text, context)

    def finish(self, image: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        """See `Transformer.finish`."""
        scale, shift = self.modulation.chunks(modulation, "norm_out.linear")
        return self.proj_out(modulated_norm(image, shift, scale))  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Transformer.load_weights`."""
        fill_targets(self._weight_targets(), weights, lambda _: False)

    def _weight_targets(self) -> WeightTargets:
        for layer in (self.img_in, self.txt_in, self.proj_out):
            yield from top_level(layer)
        yield whole_parameter("txt_norm.weight", self, "txt_norm")
        yield from self.time.weight_targets("time_text_embed.timestep_embedder")
        yield from self.modulation.weight_targets()
        for index, block in enumerate(self.blocks):
            yield from cast("JointBlock", block).weight_targets(_block(index))


def qwen_rotary(grids: Sequence[tuple[int, int]], num_text: int, axes: Sequence[int]) -> Rotary:
    """Return the angles of `num_text` text tokens and of the tokens of images, in this order.

    Each image is a grid (height, width) whose centre is the origin; image number i stands at i on the first axis, and the
    text goes on along the diagonal from where the largest image ends.
    """
    angles, end = [], 0
    for number, (height, width) in enumerate(grids):
        rows = torch.arange(height) - (height - height // 2)
        columns = torch.arange(width) - (width - width // 2)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        angles.append(_angles((torch.full_like(y, number).reshape(-1), y.reshape(-1), x.reshape(-1)), axes))
        end = max(end, height // 2, width // 2)
    diagonal = torch.arange(end, end + num_text)
    joined = torch.cat((_angles((diagonal,) * 3, axes), *angles))
    return Rotary(joined.cos(), joined.sin())


def _angles(positions: Sequence[torch.Tensor], axes: Sequence[int]) -> torch.Tensor:
    """Return float32 angles [S, P / 2] of positions, one tensor [S] an axis."""
    return torch.cat(
        [
            torch.outer(place, 1.0 / torch.pow(THETA, torch.arange(0, features, 2).to(torch.float32).div(features)))
            for place, features in zip(positions, axes, strict=True)
        ],
        dim=1,
    )


def _block(index: int) -> str:
    return f"transformer_blocks.{index}"
