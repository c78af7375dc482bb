"""Stable Diffusion 3's transformer (Esser et al., 2024): blocks of two streams, positions by table. Knows nothing of prompts or steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets, fill_targets
from xllm_runtime.models.dit.blocks import (
    IMAGE_NAMES,
    TEXT_NAMES,
    BlockShape,
    JointBlock,
    SelfAttention,
    StepContext,
    Stream,
)
from xllm_runtime.models.dit.embeddings import TIMESTEP_FEATURES, TwoLayerEmbedding, sincos_positions, sinusoidal
from xllm_runtime.models.dit.flux import top_level
from xllm_runtime.models.dit.modulation import Modulation
from xllm_runtime.models.dit.operations import modulated_norm
from xllm_runtime.models.dit.patches import PatchEmbedding, flattened


class SD3Transformer(nn.Module):
    """See `Transformer`; `config` is the folder's config.json of diffusers' `SD3Transformer2DModel`."""

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        heads, head_size = config["num_attention_heads"], config["attention_head_dim"]
        size = heads * head_size
        shape = BlockShape(size, heads, head_size, config.get("qk_norm") == "rms_norm", dtype)
        self.num_blocks: int = config["num_layers"]
        patch, channels = config["patch_size"], config["in_channels"]
        self.patch: int = patch
        self.text_features: int = config["joint_attention_dim"]
        self.patches = PatchEmbedding(patch, channels, size, dtype)
        self.max_grid: int = config["pos_embed_max_size"]
        base = config["sample_size"] // patch
        steps = torch.arange(self.max_grid, dtype=torch.float64) / (self.max_grid / base)
        self._steps, self._size = steps, size
        self._positions: dict[tuple[int, int], torch.Tensor] = {}
        self.context_embedder = Linear(
            config["joint_attention_dim"], [("context_embedder", size)], has_bias=True, dtype=dtype
        )
        self.time = TwoLayerEmbedding(TIMESTEP_FEATURES, size, dtype)
        self.pooled = TwoLayerEmbedding(config["pooled_projection_dim"], size, dtype)
        last = self.num_blocks - 1
        with_second = frozenset(config.get("dual_attention_layers") or ())
        self.blocks = nn.ModuleList(
            JointBlock(
                Stream(shape, IMAGE_NAMES),
                Stream(shape, TEXT_NAMES, has_output=index != last),
                updates_text=index != last,
                second=SelfAttention(shape, "attn2") if index in with_second else None,
            )
            for index in range(self.num_blocks)
        )
        parts: list[tuple[str, int]] = []
        for index in range(self.num_blocks):
            parts.append((f"{_block(index)}.norm1.linear", (9 if index in with_second else 6) * size))
            parts.append((f"{_block(index)}.norm1_context.linear", (2 if index == last else 6) * size))
        self.modulation = Modulation(size, [*parts, ("norm_out.linear", 2 * size)], dtype)
        rows = patch**2 * (config.get("out_channels") or channels)
        self.proj_out = Linear(size, [("proj_out", rows)], has_bias=True, dtype=dtype)

    def embed_text(self, text: torch.Tensor) -> torch.Tensor:
        """See `Transformer.embed_text`."""
        return self.context_embedder(text.to(self.dtype))  # type: ignore[no-any-return]

    def embed_condition(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return what a prompt's pooled text [E] adds to the timestep's embedding: [D]."""
        return self.pooled(pooled[None])[0]  # type: ignore[no-any-return]

    def positions(self, height: int, width: int) -> torch.Tensor:
        """Return the embeddings [height * width, D] of a grid of patches: the middle of the largest grid."""
        table = self._positions.get((height, width))
        if table is None:
            top, left = (self.max_grid - height) // 2, (self.max_grid - width) // 2
            rows, columns = self._steps[top : top + height], self._steps[left : left + width]
            grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
            table = sincos_positions(self._size, grid).to(self.proj_out.weight.device, self.dtype)
            self._positions[height, width] = table
        return table

    def modulation_rows(self, condition: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """See `Transformer.modulation_rows`."""
        return self.modulation(self.time(sinusoidal(timesteps)) + condition)  # type: ignore[no-any-return]

    def start(
        self, tokens: torch.Tensor, text: torch.Tensor | None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Transformer.start`."""
        assert text is not None, "Stable Diffusion 3 always has a text"
        assert positions is not None, "and a table of positions"
        return torch.cat((text, self.patches(tokens, positions)), dim=1)

    def run(self, hidden: torch.Tensor, first: int, last: int, modulation: torch.Tensor, context: StepContext) -> None:
        """See `Transformer.run`."""
        for index in range(first, last):
            image = self.modulation.chunks(modulation, f"{_block(index)}.norm1.linear")
            text = self.modulation.chunks(modulation, f"{_block(index)}.norm1_context.linear")
            self.blocks[index](hidden, image, text, context)

    def finish(self, image: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        """See `Transformer.finish`."""
        scale, shift = self.modulation.chunks(modulation, "norm_out.linear")
        return self.proj_out(modulated_norm(image, shift, scale))  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Transformer.load_weights`; the table of positions is computed, not read."""
        fill_targets(
            self._weight_targets(),
            flattened(weights, "pos_embed.proj.weight"),
            lambda name: name == "pos_embed.pos_embed",
        )

    def _weight_targets(self) -> WeightTargets:
        yield from top_level(self.context_embedder)
        yield from top_level(self.proj_out)
        yield from self.patches.weight_targets("pos_embed")
        yield from self.time.weight_targets("time_text_embed.timestep_embedder")
        yield from self.pooled.weight_targets("time_text_embed.text_embedder")
        yield from self.modulation.weight_targets()
        for index, block in enumerate(self.blocks):
            yield from cast("JointBlock", block).weight_targets(_block(index))


def _block(index: int) -> str:
    return f"transformer_blocks.{index}"
