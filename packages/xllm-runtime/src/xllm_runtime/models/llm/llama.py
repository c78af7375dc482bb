"""The Llama family: Llama, Qwen2, Qwen3 and what has their shape. Settings of `ModelArgs` are all that tells them apart.

    hidden = embed(token_ids)
    for each layer:  hidden += attention(norm(hidden));  hidden += mlp(norm(hidden))
    logits = head(norm(hidden))

Knows nothing of batches: rows are tokens, and `AttentionMetadata` says which sequence each belongs to. This file stays
one model; what differs in more than a setting gets a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.kv_cache import LayerGroup
from xllm_framework.model import ModelArgs
from xllm_runtime.attention import (
    AttendsLastRows,
    AttentionBackend,
    AttentionMetadata,
    AttentionSpec,
    LastRows,
    select_attention,
)
from xllm_runtime.layers.embedding import Embedding
from xllm_runtime.layers.kv_scales import kv_scale_targets
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.norm import RMSNorm
from xllm_runtime.layers.operations import FUSED_HEAD_SIZES, FusesNormAndRotation, Operations, select_operations
from xllm_runtime.layers.parameter import WeightTargets, fill_targets
from xllm_runtime.layers.quantised_linear import kept_layers, new_linear
from xllm_runtime.layers.rotary import RotaryEmbedding
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.weights.quantisation import QuantisationScheme, quantisation_of


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What every layer of one model is built from."""

    args: ModelArgs
    dtype: torch.dtype
    operations: Operations
    rotary: RotaryEmbedding
    attention_backend: str
    expert_kernels: str
    """"auto" or "torch": who computes experts, in models that have them."""
    quantisation: QuantisationScheme | None = None
    """How the checkpoint stores matrices; None: as they are."""
    kept: str = "auto"
    """Which of these stay so: see `new_linear`."""
    kv_dtype: torch.dtype | None = None
    """Type of the cache; None: `dtype`."""

    def norm(self, size: int) -> RMSNorm:
        """Return a new norm over `size` numbers."""
        return RMSNorm(size, self.args.rms_norm_eps, self.dtype, self.operations)

    def linear(self, in_features: int, *parts: tuple[str, int], has_bias: bool) -> Linear:
        """Return a new linear layer of `parts`: (name in the checkpoint, output rows)."""
        return new_linear(
            in_features, parts, has_bias=has_bias, dtype=self.dtype, scheme=self.quantisation, kept=self.kept
        )


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions, over one layer's paged KV."""

    def __init__(self, blueprint: Blueprint, layer: int) -> None:
        super().__init__()
        args = blueprint.args
        self._num_heads, self._num_kv_heads, self._head_dim = args.num_heads, args.num_kv_heads, args.head_dim
        self._sizes = [heads * args.head_dim for heads in (args.num_heads, args.num_kv_heads, args.num_kv_heads)]
        query_size, kv_size, _ = self._sizes
        self.qkv_proj = blueprint.linear(
            args.hidden_size,
            ("q_proj", query_size),
            ("k_proj", kv_size),
            ("v_proj", kv_size),
            has_bias=args.has_qkv_bias,
        )
        self.o_proj = blueprint.linear(query_size, ("o_proj", args.hidden_size), has_bias=args.has_output_bias)
        self.q_norm = blueprint.norm(args.head_dim) if args.has_qk_norm else None
        self.k_norm = blueprint.norm(args.head_dim) if args.has_qk_norm else None
        self.rotary = blueprint.rotary
        self._operations, self._eps = blueprint.operations, args.rms_norm_eps
        self._spec = replace(attention_spec(args, layer, blueprint.dtype), kv_dtype=blueprint.kv_dtype)
        self._attention_backend = blueprint.attention_backend
        self._attention = select_attention(self._spec, blueprint.attention_backend)
        self._kv_cache: tuple[torch.Tensor, torch.Tensor] | None = None
        self.group = 0
        """The group of layers whose block table it uses."""

    @property
    def kv_cache(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(K, V) of this layer, each [num_blocks, block_size, num_kv_heads, head_dim]."""
        if self._kv_cache is None:
            raise RuntimeError("bind_kv_cache must come before forward")
        return self._kv_cache

    def bind_kv_cache(self, kv_cache: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Use (K, V), each [num_blocks, block_size, num_kv_heads, head_dim], from now on; bytes where numbers have 8 bits."""
        keys, values = kv_cache
        kv_dtype = self._spec.kv_dtype
        self._kv_cache = (keys, values) if kv_dtype is None else (keys.view(kv_dtype), values.view(kv_dtype))

    @property
    def kv_scales(self) -> tuple[float, float]:
        """What keys and values in a cache of 8 bits are multiplied by."""
        return self._spec.kv_scales

    def set_kv_scales(self, scales: tuple[float, float]) -> None:
        """Use `scales` from now on; the cache must not be in use yet."""
        self._spec = replace(self._spec, kv_scales=scales)
        self._attention = select_attention(self._spec, self._attention_backend)

    def wrap_attention(self, wrap: Callable[[AttentionBackend, AttentionSpec], AttentionBackend]) -> None:
        """Put what `wrap` makes of the attention backend in its place."""
        self._attention = wrap(self._attention, self._spec)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata, last: LastRows | None = None
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] of the rows of `last`."""
        query, key, value = self.qkv_proj(x).split(self._sizes, -1)
        query = query.unflatten(-1, (self._num_heads, self._head_dim))
        key = key.unflatten(-1, (self._num_kv_heads, self._head_dim))
        value = value.unflatten(-1, (self._num_kv_heads, self._head_dim))
        query, key = self._norm_and_rotate(query, key, positions)
        attention = attention.of_group(self.group)
        if last is None:
            attended = self._attention.forward(query, key, value, self.kv_cache, attention)
        elif isinstance(self._attention, AttendsLastRows):
            attended = self._attention.forward_last(query, key, value, self.kv_cache, attention, last)
        else:
            attended = self._attention.forward(query, key, value, self.kv_cache, attention)[last.rows]
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output

    def _norm_and_rotate(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query [T, Hq, D] and key [T, Hk, D] as attention takes them; they may change in place."""
        operations = self._operations
        if self.q_norm is None or self.k_norm is None:
            self.rotary(positions, query, key)
        elif isinstance(operations, FusesNormAndRotation) and self._head_dim in FUSED_HEAD_SIZES:
            norms, table = (self.q_norm.weight, self.k_norm.weight), self.rotary.step_table
            operations.norm_and_rotate(positions, query, key, *norms, self._eps, table)
        else:
            query, key = self.q_norm(query), self.k_norm(key)
            self.rotary(positions, query, key)
        return query, key

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.qkv_proj.weight_targets(prefix)
        yield from self.o_proj.weight_targets(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            yield from self.q_norm.weight_targets(f"{prefix}.q_norm")
            yield from self.k_norm.weight_targets(f"{prefix}.k_norm")
        if self._spec.kv_dtype is not None:
            yield from kv_scale_targets(prefix, self)


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        args = blueprint.args
        hidden, inner, has_bias = args.hidden_size, args.intermediate_size, args.has_mlp_bias
        self.gate_up_proj = blueprint.linear(hidden, ("gate_proj", inner), ("up_proj", inner), has_bias=has_bias)
        self.down_proj = blueprint.linear(inner, ("down_proj", hidden), has_bias=has_bias)
        self._operations = blueprint.operations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        output: torch.Tensor = self.down_proj(self._operations.silu_and_mul(self.gate_up_proj(x)))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.gate_up_proj.weight_targets(prefix)
        yield from self.down_proj.weight_targets(prefix)


class LlamaDecoderLayer(nn.Module):
    """Attention and feed-forward network, each normed before and added to the residual after."""

    def __init__(self, blueprint: Blueprint, layer: int, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = blueprint.norm(blueprint.args.hidden_size)
        self.self_attn = LlamaAttention(blueprint, layer)
        self.post_attention_layernorm = blueprint.norm(blueprint.args.hidden_size)
        self.mlp = mlp

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata
    ) -> torch.Tensor:
        """Take the last layer's output `x` [T, hidden], not yet added to `residual`; return this layer's.

        `residual` [T, hidden] is the running sum and changes in place, so does `x`.
        """
        self.input_layernorm.add(x, residual)
        x = self.self_attn(x, positions, attention)
        self.post_attention_layernorm.add(x, residual)
        output: torch.Tensor = self.mlp(x)
        return output

    def forward_last(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionMetadata,
        last: LastRows,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `forward`, for the rows of `last` alone: (output, residual), [R, hidden] each."""
        self.input_layernorm.add(x, residual)
        x = self.self_attn(x, positions, attention, last)
        residual = residual[last.rows]
        self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.input_layernorm.weight_targets(f"{prefix}.input_layernorm")
        yield from self.self_attn.weight_targets(f"{prefix}.self_attn")
        yield from self.post_attention_layernorm.weight_targets(f"{prefix}.post_attention_layernorm")
        yield from cast("HasWeights", self.mlp).weight_targets(f"{prefix}.mlp")


class HasWeights(Protocol):
    """A module that knows its tensors' names in a checkpoint."""

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""


class LlamaForCausalLM(nn.Module):
    """`CausalLM` of the family; see `models.interface`. `attention_backend`, `operations` and `kept` are for tests and trials."""

    layer_class: ClassVar[type[LlamaDecoderLayer]] = LlamaDecoderLayer

    takes_kv_dtype: ClassVar[bool] = True
    """Whether the class can keep KV in 8 bits."""

    def __init__(
        self,
        args: ModelArgs,
        dtype: torch.dtype,
        *,
        attention_backend: str = "auto",
        operations: str = "auto",
        rotary_class: type[RotaryEmbedding] = RotaryEmbedding,
        kept: str = "auto",
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.args = args
        self._dtype, self._kv_dtype = dtype, kv_dtype
        chosen = select_operations(dtype, torch.get_default_device(), operations)
        self.operations = chosen
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size, dtype)
        self.rotary = rotary_class(args, chosen)
        scheme = quantisation_of(args)
        blueprint = Blueprint(args, dtype, chosen, self.rotary, attention_backend, operations, scheme, kept, kv_dtype)
        self.layers = nn.ModuleList(
            self.layer_class(blueprint, layer, self.feed_forward(blueprint, layer)) for layer in range(args.num_layers)
        )
        self.norm = blueprint.norm(args.hidden_size)
        self.lm_head = None if args.has_tied_embeddings else Embedding(args.vocab_size, args.hidden_size, dtype)

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        return explain_llama(args)

    def feed_forward(self, blueprint: Blueprint, layer: int) -> nn.Module:
        """Return what stands behind the attention of `layer`: [T, hidden] -> [T, hidden]."""
        return LlamaMLP(blueprint)

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`."""
        stored = self._dtype if self._kv_dtype is None else torch.uint8
        return [KVCacheShape(self.args.num_kv_heads, self.args.head_dim, stored)] * self.args.num_layers

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        for layer, kv_cache in zip(self.decoder_layers(), caches, strict=True):
            layer.self_attn.bind_kv_cache(kv_cache)

    def bind_layer_groups(self, groups: Sequence[LayerGroup]) -> None:
        """See `UsesLayerGroups.bind_layer_groups`."""
        layers = self.decoder_layers()
        for index, group in enumerate(groups):
            for layer in group.layers:
                layers[layer].self_attn.group = index

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        return self.forward_embedded(self.embed_tokens(token_ids), positions, attention)

    def forward_embedded(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionMetadata,
        additions: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> torch.Tensor:
        """Compute T tokens from their embeddings `x` [T, hidden], which may change, at positions as the rotary takes them.

        After layer i, (rows int64 [R], values [R, hidden]) of `additions[i]` are added to the hidden states. Returns the rows of
        `attention.last` alone where there are such.
        """
        positions = self.rotary.begin_step(positions)
        residual = torch.zeros_like(x)
        last, final = attention.last, len(self.layers) - 1
        for index, layer in enumerate(self.decoder_layers()):
            if last is not None and index == final:
                x, residual = layer.forward_last(x, residual, positions, attention, last)
                break
            x = layer(x, residual, positions, attention)
            if index < len(additions):
                residual.index_add_(0, *additions[index])
        self.norm.add(x, residual)
        return x

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        return F.linear(hidden, self.head.weight).float()

    @property
    def head(self) -> Embedding:
        """What turns hidden states into logits; the embedding itself where both are tied."""
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`; tensors of the right dtype and device are kept, not copied."""
        fill_targets(self.weight_targets(), weights, self.ignores_weight)

    @property
    def keeps_kv_in_8_bits(self) -> bool:
        """Whether the KV cache holds 8-bit floats."""
        return self._kv_dtype is not None

    def kept_layers(self) -> frozenset[str]:
        """See `KeepsQuantised.kept_layers`."""
        return kept_layers(self.weight_targets())

    def decoder_layers(self) -> list[LlamaDecoderLayer]:
        """Return the layers in order."""
        return cast("list[LlamaDecoderLayer]", list(self.layers))

    def weight_targets(self) -> WeightTargets:
        """Yield all tensors, under Hugging Face's names."""
        yield from self.embed_tokens.weight_targets("model.embed_tokens")
        for index, layer in enumerate(self.decoder_layers()):
            yield from layer.weight_targets(f"model.layers.{index}")
        yield from self.norm.weight_targets("model.norm")
        if self.lm_head is not None:
            yield from self.lm_head.weight_targets("lm_head")

    def ignores_weight(self, name: str) -> bool:
        """Whether a tensor that nothing wants is harmless.

        Old checkpoints store the rotary frequencies, and some a second copy of a tied head.
        """
        return name.endswith(".rotary_emb.inv_freq") or (name == "lm_head.weight" and self.args.has_tied_embeddings)


def attention_spec(args: ModelArgs, layer: int, dtype: torch.dtype) -> AttentionSpec:
    """Return what the attention of `layer` looks like on the current default device."""
    return AttentionSpec(
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_dim=args.head_dim,
        scale=args.head_dim**-0.5,
        dtype=dtype,
        device=torch.get_default_device(),
        sliding_window=args.sliding_window if args.sliding_window and layer in args.sliding_window_layers else 0,
    )
