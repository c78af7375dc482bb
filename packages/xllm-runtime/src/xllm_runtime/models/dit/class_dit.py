"""The class-conditional diffusion transformer (Peebles and Xie, 2023), as diffusers' `DiTTransformer2DModel` stores it.

Its prompts are classes. Knows nothing of their names, of steps or of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from xllm_framework.errors import UnsupportedModel
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets, fill_targets, whole_parameter
from xllm_runtime.models.dit.blocks import IMAGE_NAMES, BlockShape, JointBlock, StepContext, Stream
from xllm_runtime.models.dit.embeddings import TIMESTEP_FEATURES, TwoLayerEmbedding, sincos_positions, sinusoidal
from xllm_runtime.models.dit.flux import top_level
from xllm_runtime.models.dit.modulation import Modulation
from xllm_runtime.models.dit.operations import modulated_norm
from xllm_runtime.models.dit.patches import PatchEmbedding, flattened

NAMES = replace(IMAGE_NAMES, attention="attn1")
REQUIRED = {"norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate", "attention_bias": True}
DOWNSCALE_SHIFT = 1
"""Of the timestep's frequencies; the other families have 0."""


class ClassEmbedding(nn.Module):
    """What timestep and class say to one block: each block has an embedding of its own."""

    def __init__(self, num_classes: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.time = TwoLayerEmbedding(TIMESTEP_FEATURES, size, dtype)
        self.table = nn.Parameter(torch.empty(num_classes + 1, size, dtype=dtype), requires_grad=False)

    def forward(self, label: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """A class (int64 []) and timesteps [S] -> [S, D]."""
        return self.time(sinusoidal(timesteps, downscale_shift=DOWNSCALE_SHIFT)) + self.table[label]  # type: ignore[no-any-return]

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors below `prefix`."""
        yield from self.time.weight_targets(f"{prefix}.timestep_embedder")
        yield whole_parameter(f"{prefix}.class_embedder.embedding_table.weight", self, "table")


class ClassTransformer(nn.Module):
    """See `Transformer`; `config` is the folder's config.json. A condition is a class, int64 []; `num_classes` is none.

    Raises:
        UnsupportedModel: the configuration asks for other norms or activations than the paper's.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        for setting, wanted in REQUIRED.items():
            if config.get(setting, wanted) != wanted:
                raise UnsupportedModel(f"A DiT with {setting}={config[setting]!r} is not computed here.")
        self.dtype = dtype
        heads, head_size = config["num_attention_heads"], config["attention_head_dim"]
        size = heads * head_size
        shape = BlockShape(size, heads, head_size, False, dtype)
        self.num_blocks: int = config["num_layers"]
        self.num_classes: int = config["num_embeds_ada_norm"]
        self.patch: int = config["patch_size"]
        self.in_channels: int = config["in_channels"]
        self.out_channels: int = config.get("out_channels") or config["in_channels"]
        self.patches = PatchEmbedding(self.patch, self.in_channels, size, dtype)
        grid = torch.arange(config["sample_size"] // self.patch, dtype=torch.float64)
        table = sincos_positions(size, torch.stack(torch.meshgrid(grid, grid, indexing="ij"))).to(dtype)
        self.positions = table.to(self.patches.proj.weight.device)
        """Embeddings [N, D] of the only grid that such a model draws."""
        self.embeddings = nn.ModuleList(ClassEmbedding(self.num_classes, size, dtype) for _ in range(self.num_blocks))
        self.modulations = nn.ModuleList(
            Modulation(size, [(f"{_block(index)}.norm1.linear", 6 * size)], dtype) for index in range(self.num_blocks)
        )
        self.last_modulation = Modulation(size, [("proj_out_1", 2 * size)], dtype)
        self.blocks = nn.ModuleList(JointBlock(Stream(shape, NAMES)) for _ in range(self.num_blocks))
        self._size = size
        self.proj_out = Linear(size, [("proj_out_2", self.patch**2 * self.out_channels)], has_bias=True, dtype=dtype)

    def embed_text(self, text: torch.Tensor) -> torch.Tensor:
        """Classes have no text."""
        raise UnsupportedModel("A class-conditional transformer takes no text.")

    def modulation_rows(self, condition: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """See `Transformer.modulation_rows`."""
        embedded = [embedding(condition, timesteps) for embedding in self.embeddings]
        rows = [modulation(row) for modulation, row in zip(self.modulations, embedded, strict=True)]
        return torch.cat((*rows, self.last_modulation(embedded[0])), dim=1)

    def start(
        self, tokens: torch.Tensor, text: torch.Tensor | None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Transformer.start`."""
        return self.patches(tokens, self.positions)  # type: ignore[no-any-return]

    def run(self, hidden: torch.Tensor, first: int, last: int, modulation: torch.Tensor, context: StepContext) -> None:
        """See `Transformer.run`."""
        chunks = modulation.chunk(modulation.shape[1] // self._size, dim=1)
        for index in range(first, last):
            self.blocks[index](hidden, chunks[6 * index : 6 * index + 6], (), context)

    def finish(self, image: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        """See `Transformer.finish`; a learned variance is left out, as solvers of the probability flow do not use it."""
        shift, scale = modulation[:, -2 * self._size :].chunk(2, dim=1)
        predicted = self.proj_out(modulated_norm(image, shift, scale)).unflatten(-1, (-1, self.out_channels))
        return predicted[..., : self.in_channels].flatten(-2)  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Transformer.load_weights`; the table of positions is computed, not read."""
        fill_targets(
            self._weight_targets(),
            flattened(weights, "pos_embed.proj.weight"),
            lambda name: name == "pos_embed.pos_embed",
        )

    def _weight_targets(self) -> WeightTargets:
        yield from self.patches.weight_targets("pos_embed")
        yield from top_level(self.proj_out)
        yield from self.last_modulation.weight_targets()
        for index, block in enumerate(self.blocks):
            yield from cast("JointBlock", block).weight_targets(_block(index))
            yield from cast("ClassEmbedding", self.embeddings[index]).weight_targets(f"{_block(index)}.norm1.emb")
            yield from cast("Modulation", self.modulations[index]).weight_targets()


def _block(index: int) -> str:
    return f"transformer_blocks.{index}"
