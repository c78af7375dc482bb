"""FLUX.1's transformer (Black Forest Labs, 2024): blocks of two streams, then blocks of one. Knows nothing of prompts or steps."""

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
    SingleBlock,
    StepContext,
    Stream,
)
from xllm_runtime.models.dit.embeddings import TIMESTEP_FEATURES, TwoLayerEmbedding, sinusoidal
from xllm_runtime.models.dit.modulation import Modulation
from xllm_runtime.models.dit.operations import Rotary, modulated_norm

THETA = 10000.0


class FluxTransformer(nn.Module):
    """See `Transformer`; `config` is the folder's config.json of diffusers' `FluxTransformer2DModel`."""

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.in_channels: int = config["in_channels"]
        self.out_channels: int = config.get("out_channels") or config["in_channels"]
        heads, head_size = config["num_attention_heads"], config["attention_head_dim"]
        size = heads * head_size
        shape = BlockShape(size, heads, head_size, True, dtype)
        self.axes: list[int] = list(config.get("axes_dims_rope") or (16, 56, 56))
        self.num_joint: int = config["num_layers"]
        self.num_blocks: int = self.num_joint + config["num_single_layers"]
        self.takes_guidance: bool = config["guidance_embeds"]
        self.x_embedder = Linear(self.in_channels, [("x_embedder", size)], has_bias=True, dtype=dtype)
        self.context_embedder = Linear(
            config["joint_attention_dim"], [("context_embedder", size)], has_bias=True, dtype=dtype
        )
        self.time = TwoLayerEmbedding(TIMESTEP_FEATURES, size, dtype)
        self.guidance = TwoLayerEmbedding(TIMESTEP_FEATURES, size, dtype) if self.takes_guidance else None
        self.pooled = TwoLayerEmbedding(config["pooled_projection_dim"], size, dtype)
        self.joint_blocks = nn.ModuleList(
            JointBlock(Stream(shape, IMAGE_NAMES), Stream(shape, TEXT_NAMES)) for _ in range(self.num_joint)
        )
        self.single_blocks = nn.ModuleList(SingleBlock(shape) for _ in range(config["num_single_layers"]))
        parts: list[tuple[str, int]] = []
        for index in range(self.num_joint):
            parts += [(f"{_joint(index)}.{norm}.linear", 6 * size) for norm in ("norm1", "norm1_context")]
        parts += [(f"{_single(index)}.norm.linear", 3 * size) for index in range(config["num_single_layers"])]
        self.modulation = Modulation(size, [*parts, ("norm_out.linear", 2 * size)], dtype)
        self.proj_out = Linear(size, [("proj_out", self.out_channels)], has_bias=True, dtype=dtype)

    def embed_text(self, text: torch.Tensor) -> torch.Tensor:
        """See `Transformer.embed_text`."""
        return self.context_embedder(text.to(self.dtype))  # type: ignore[no-any-return]

    def embed_condition(self, pooled: torch.Tensor, guidance_scale: float) -> torch.Tensor:
        """Return what a prompt's pooled text [E] and the distilled guidance add to the timestep's embedding: [D]."""
        condition: torch.Tensor = self.pooled(pooled[None])
        if self.guidance is not None:
            scale = torch.tensor([guidance_scale], dtype=torch.float32, device=pooled.device)
            condition = condition + self.guidance(sinusoidal(scale * 1000.0))
        return condition[0]

    def modulation_rows(self, condition: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """See `Transformer.modulation_rows`."""
        return self.modulation(self.time(sinusoidal(timesteps)) + condition)  # type: ignore[no-any-return]

    def start(
        self, tokens: torch.Tensor, text: torch.Tensor | None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Transformer.start`."""
        assert text is not None, "FLUX.1 always has a text"
        return torch.cat((text, self.x_embedder(tokens.to(self.dtype))), dim=1)

    def run(self, hidden: torch.Tensor, first: int, last: int, modulation: torch.Tensor, context: StepContext) -> None:
        """See `Transformer.run`."""
        for index in range(first, last):
            if index < self.num_joint:
                image = self.modulation.chunks(modulation, f"{_joint(index)}.norm1.linear")
                text = self.modulation.chunks(modulation, f"{_joint(index)}.norm1_context.linear")
                self.joint_blocks[index](hidden, image, text, context)
            else:
                single = index - self.num_joint
                chunks = self.modulation.chunks(modulation, f"{_single(single)}.norm.linear")
                self.single_blocks[single](hidden, chunks, context)

    def finish(self, image: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        """See `Transformer.finish`."""
        scale, shift = self.modulation.chunks(modulation, "norm_out.linear")
        return self.proj_out(modulated_norm(image, shift, scale))  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Transformer.load_weights`."""
        fill_targets(self._weight_targets(), weights, lambda _: False)

    def _weight_targets(self) -> WeightTargets:
        yield from top_level(self.x_embedder)
        yield from top_level(self.context_embedder)
        yield from top_level(self.proj_out)
        yield from self.time.weight_targets("time_text_embed.timestep_embedder")
        yield from self.pooled.weight_targets("time_text_embed.text_embedder")
        if self.guidance is not None:
            yield from self.guidance.weight_targets("time_text_embed.guidance_embedder")
        yield from self.modulation.weight_targets()
        for index, block in enumerate(self.joint_blocks):
            yield from cast("JointBlock", block).weight_targets(_joint(index))
        for index, block in enumerate(self.single_blocks):
            yield from cast("SingleBlock", block).weight_targets(_single(index))


def top_level(layer: Linear) -> WeightTargets:
    """Yield the tensors of a layer whose part's name is the whole name in the checkpoint."""
    for name, target in layer.weight_targets(""):
        yield name.removeprefix("."), target


def flux_rotary(positions: torch.Tensor, axes: Iterable[int]) -> Rotary:
    """Return the angles of positions [S, number of axes]; `axes` are the features that each axis turns."""
    angles = []
    for axis, features in enumerate(axes):
        frequencies = THETA ** -(torch.arange(0, features, 2, dtype=torch.float64) / features)
        angles.append(positions[:, axis].double()[:, None] * frequencies)
    joined = torch.cat(angles, dim=1)
    return Rotary(joined.cos().float(), joined.sin().float())


def image_positions(height: int, width: int) -> torch.Tensor:
    """Return the positions (0, y, x) of a grid of tokens, row by row: [height * width, 3]."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((torch.zeros_like(rows), rows, columns), dim=-1).reshape(-1, 3)


def _joint(index: int) -> str:
    return f"transformer_blocks.{index}"


def _single(index: int) -> str:
    return f"single_transformer_blocks.{index}"
