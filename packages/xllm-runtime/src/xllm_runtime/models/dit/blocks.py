"""The blocks of multimodal diffusion transformers: two streams, text and image, that attend to each other (Esser et al., 2024).

Hidden states of both streams lie in one tensor [B, L + N, D], text first, and are changed in place. FLUX.1, Qwen-Image and
Stable Diffusion 3 differ in names, rotation and head norms only; a block without text is a plain DiT block. Knows nothing
of steps, prompts or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.models.dit.operations import (
    Projected,
    Rotary,
    add_gated,
    attention_beside_gelu,
    gelu,
    joint_attention,
    modulated_norm,
)


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Where a checkpoint has a stream's tensors, below the block's prefix."""

    attention: str
    query_key_value: tuple[str, str, str]
    out: str
    norms: tuple[str, str]
    feed_forward: str


IMAGE_NAMES = StreamNames("attn", ("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k"), "ff")
TEXT_NAMES = StreamNames(
    "attn",
    ("add_q_proj", "add_k_proj", "add_v_proj"),
    "to_add_out",
    ("norm_added_q", "norm_added_k"),
    "ff_context",
)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes that all blocks of a model share."""

    features: int
    num_heads: int
    head_size: int
    has_head_norms: bool
    dtype: torch.dtype
    mlp_ratio: int = 4


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all blocks of a step are told beside their modulation."""

    num_text: int
    """L, the tokens of text."""
    rotary: Rotary | None = None
    """Of all L + N positions."""
    positions: torch.Tensor | None = None
    """Embeddings [N, D] of the image's places, for models whose attention does not rotate."""
    mask: torch.Tensor | None = None
    """bool [B, 1, 1, L + N], False for padding of the text; None where there is none."""


class Stream(nn.Module):
    """One stream's share of a block. Without `has_output` it only lends its keys and values to the other stream."""

    def __init__(self, shape: BlockShape, names: StreamNames, *, has_output: bool = True) -> None:
        super().__init__()
        size, dtype = shape.features, shape.dtype
        inner = shape.num_heads * shape.head_size
        self._shape, self._names, self._has_output = shape, names, has_output
        self.qkv = Linear(size, [(name, inner) for name in names.query_key_value], has_bias=True, dtype=dtype)
        self.q_norm = self.k_norm = None
        if shape.has_head_norms:
            self.q_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
            self.k_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
        if has_output:
            mlp = size * shape.mlp_ratio
            self.out = Linear(inner, [(names.out, size)], has_bias=True, dtype=dtype)
            self.up = Linear(size, [("net.0.proj", mlp)], has_bias=True, dtype=dtype)
            self.down = Linear(mlp, [("net.2", size)], has_bias=True, dtype=dtype)

    def project(self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> Projected:
        """Return query, key and value of hidden states [B, n, D]."""
        qkv = self.qkv(modulated_norm(x, shift, scale))
        return Projected(qkv, self._shape.num_heads, self.q_norm, self.k_norm)

    def update(self, x: torch.Tensor, attended: torch.Tensor, modulation: Sequence[torch.Tensor]) -> None:
        """Add what attention and the feed-forward layer bring to `x` [B, n, D], in place.

        Args:
            attended: [B, n, H * P].
            modulation: gate of attention; shift, scale and gate of the feed-forward layer.
        """
        attention_gate, shift, scale, mlp_gate = modulation
        add_gated(x, self.out(attended), attention_gate)
        inner = gelu(self.up(modulated_norm(x, shift, scale)))
        add_gated(x, self.down(inner), mlp_gate)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the stream's tensors below the block's `prefix`."""
        names = self._names
        attention = f"{prefix}.{names.attention}"
        yield from self.qkv.weight_targets(attention)
        if self.q_norm is not None:
            yield whole_parameter(f"{attention}.{names.norms[0]}.weight", self, "q_norm")
            yield whole_parameter(f"{attention}.{names.norms[1]}.weight", self, "k_norm")
        if self._has_output:
            yield from self.out.weight_targets(attention)
            yield from self.up.weight_targets(f"{prefix}.{names.feed_forward}")
            yield from self.down.weight_targets(f"{prefix}.{names.feed_forward}")


class SelfAttention(nn.Module):
    """An attention of the image to itself alone, beside the joint one; Stable Diffusion 3.5 medium has it in some blocks."""

    def __init__(self, shape: BlockShape, name: str) -> None:
        super().__init__()
        self._name, self._num_heads = name, shape.num_heads
        inner, size, dtype = shape.num_heads * shape.head_size, shape.features, shape.dtype
        self.qkv = Linear(size, [(part, inner) for part in IMAGE_NAMES.query_key_value], has_bias=True, dtype=dtype)
        self.q_norm = self.k_norm = None
        if shape.has_head_norms:
            self.q_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
            self.k_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
        self.out = Linear(inner, [(IMAGE_NAMES.out, size)], has_bias=True, dtype=dtype)

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """[B, N, D] -> [B, N, D]."""
        projected = Projected(self.qkv(modulated_norm(x, shift, scale)), self._num_heads, self.q_norm, self.k_norm)
        return self.out(joint_attention([projected], None))  # type: ignore[no-any-return]

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors below the block's `prefix`."""
        attention = f"{prefix}.{self._name}"
        yield from self.qkv.weight_targets(attention)
        yield from self.out.weight_targets(attention)
        if self.q_norm is not None:
            yield whole_parameter(f"{attention}.norm_q.weight", self, "q_norm")
            yield whole_parameter(f"{attention}.norm_k.weight", self, "k_norm")


class JointBlock(nn.Module):
    """A block of an image stream and, where `text` is given, a text stream that attend to each other.

    Args:
        second: of the image, beside the joint attention and from the same hidden states.
    """

    def __init__(
        self,
        image: Stream,
        text: Stream | None = None,
        *,
        updates_text: bool = True,
        second: SelfAttention | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text, self.second = image, text, second
        self._updates_text = updates_text

    def forward(
        self,
        hidden: torch.Tensor,
        image_modulation: Sequence[torch.Tensor],
        text_modulation: Sequence[torch.Tensor],
        context: StepContext,
    ) -> None:
        """Change `hidden` [B, L + N, D] in place.

        Args:
            image_modulation: shift, scale and gate of attention, of the feed-forward layer and of the second attention
                where there is one, each [B, D].
            text_modulation: the same for the text; scale and shift alone where it is not updated; empty without text.
        """
        num_text = context.num_text
        image = hidden[:, num_text:]
        shift, scale, *image_rest = image_modulation
        of_image = self.image.project(image, shift, scale)
        if self.second is not None:
            *image_rest, shift, scale, gate = image_rest
            add_gated(image, self.second(image, shift, scale), gate)
        if self.text is None:
            self.image.update(image, joint_attention([of_image], context.rotary, context.mask), image_rest)
            return
        text = hidden[:, :num_text]
        text_shift, text_scale, *text_rest = text_modulation if self._updates_text else reversed(text_modulation)
        of_text = self.text.project(text, text_shift, text_scale)
        attended = joint_attention([of_text, of_image], context.rotary, context.mask)
        self.image.update(image, attended[:, num_text:], image_rest)
        if self._updates_text:
            self.text.update(text, attended[:, :num_text], text_rest)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors of both streams."""
        yield from self.image.weight_targets(prefix)
        if self.text is not None:
            yield from self.text.weight_targets(prefix)
        if self.second is not None:
            yield from self.second.weight_targets(prefix)


class SingleBlock(nn.Module):
    """FLUX.1's later blocks: one stream of text and image, attention and feed-forward side by side in two products."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self._shape = shape
        self._inner = inner = shape.num_heads * shape.head_size
        mlp, dtype = shape.features * shape.mlp_ratio, shape.dtype
        parts = [(f"attn.{name}", inner) for name in IMAGE_NAMES.query_key_value]
        self.inputs = Linear(shape.features, [*parts, ("proj_mlp", mlp)], has_bias=True, dtype=dtype)
        self.q_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
        self.k_norm = nn.Parameter(torch.empty(shape.head_size, dtype=dtype), requires_grad=False)
        self.out = Linear(inner + mlp, [("proj_out", shape.features)], has_bias=True, dtype=dtype)

    def forward(self, hidden: torch.Tensor, modulation: Sequence[torch.Tensor], context: StepContext) -> None:
        """Change `hidden` [B, S, D] in place; `modulation` is shift, scale and gate, each [B, D]."""
        shift, scale, gate = modulation
        projected = self.inputs(modulated_norm(hidden, shift, scale))
        qkv, mlp = projected.split((3 * self._inner, projected.shape[-1] - 3 * self._inner), dim=-1)
        stream = Projected(qkv, self._shape.num_heads, self.q_norm, self.k_norm)
        add_gated(hidden, self.out(attention_beside_gelu(stream, mlp, context.rotary, context.mask)), gate)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the block's tensors."""
        yield from self.inputs.weight_targets(prefix)
        yield whole_parameter(f"{prefix}.attn.norm_q.weight", self, "q_norm")
        yield whole_parameter(f"{prefix}.attn.norm_k.weight", self, "k_norm")
        yield from self.out.weight_targets(prefix)
