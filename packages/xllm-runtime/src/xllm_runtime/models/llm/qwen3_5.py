"""The language part of Qwen3.5: three layers of linear attention (gated delta rule) for each one of gated full attention.

    hidden = embed(token_ids)
    for each layer:  hidden += mixer(norm(hidden));  hidden += mlp(norm(hidden))
    logits = head(norm(hidden))

Layers of full attention keep paged KV, those of linear attention a state a sequence, in slots that `AttentionMetadata` names.
Norms multiply by 1 + weight. Knows nothing of batches beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_runtime.attention import AttentionMetadata, select_attention
from xllm_runtime.layers.embedding import Embedding
from xllm_runtime.layers.gated_delta import gated_delta, short_convolution
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.operations import select_operations
from xllm_runtime.layers.parameter import WeightTargets, fill_targets, whole_parameter
from xllm_runtime.layers.rotary import RotaryEmbedding
from xllm_runtime.models.interface import KVCacheShape, StateShape
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.llm.llama import Blueprint, LlamaMLP, attention_spec

_DEFAULT_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class LinearSizes:
    """Heads of linear attention."""

    num_key_heads: int
    key_dim: int
    num_value_heads: int
    """A multiple of `num_key_heads`."""
    value_dim: int
    kernel: int
    """Tokens that the convolution sees."""

    @classmethod
    def from_config(cls, args: ModelArgs) -> LinearSizes:
        """Return the sizes that config.json names."""
        config = args.raw
        return cls(
            int(config["linear_num_key_heads"]),
            int(config["linear_key_head_dim"]),
            int(config["linear_num_value_heads"]),
            int(config["linear_value_head_dim"]),
            int(config["linear_conv_kernel_dim"]),
        )

    @property
    def widths(self) -> list[int]:
        """Numbers of query, key and value together."""
        keys = self.num_key_heads * self.key_dim
        return [keys, keys, self.num_value_heads * self.value_dim]


class CenteredRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last axis, in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same, a new tensor."""
        return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight.float(), self._eps).type_as(x)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the one tensor, `<prefix>.weight`."""
        yield whole_parameter(f"{prefix}.weight", self, "weight")


class GatedAttention(nn.Module):
    """Grouped-query attention over paged KV, whose output is gated by a part of its query projection."""

    def __init__(self, blueprint: Blueprint, layer: int) -> None:
        super().__init__()
        args = blueprint.args
        self._heads, self._kv_heads, self._head_dim = args.num_heads, args.num_kv_heads, args.head_dim
        kv_size = args.num_kv_heads * args.head_dim
        self._sizes = [2 * args.num_heads * args.head_dim, kv_size, kv_size]
        parts = zip(("q_proj", "k_proj", "v_proj"), self._sizes, strict=True)
        self.qkv_proj = blueprint.linear(args.hidden_size, *parts, has_bias=False)
        self.o_proj = blueprint.linear(args.num_heads * args.head_dim, ("o_proj", args.hidden_size), has_bias=False)
        self.q_norm = CenteredRMSNorm(args.head_dim, args.rms_norm_eps, blueprint.dtype)
        self.k_norm = CenteredRMSNorm(args.head_dim, args.rms_norm_eps, blueprint.dtype)
        self._rotary = blueprint.rotary
        self._attention = select_attention(attention_spec(args, layer, blueprint.dtype), blueprint.attention_backend)
        self.kv_cache: tuple[torch.Tensor, torch.Tensor] | None = None
        """(K, V) of this layer; bound before the first forward."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        if self.kv_cache is None:
            raise RuntimeError("bind_kv_cache must come before forward")
        gated, key, value = self.qkv_proj(x).split(self._sizes, -1)
        query, gate = gated.unflatten(-1, (self._heads, 2 * self._head_dim)).chunk(2, -1)
        query = self.q_norm(query)
        key = self.k_norm(key.unflatten(-1, (self._kv_heads, self._head_dim)))
        value = value.unflatten(-1, (self._kv_heads, self._head_dim))
        self._rotary(positions, query, key)
        attended = self._attention.forward(query, key, value, self.kv_cache, attention)
        output: torch.Tensor = self.o_proj((attended * gate.sigmoid()).flatten(1))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        for projection in (self.qkv_proj, self.o_proj):
            yield from projection.weight_targets(prefix)
        yield from self.q_norm.weight_targets(f"{prefix}.q_norm")
        yield from self.k_norm.weight_targets(f"{prefix}.k_norm")


class GatedDeltaNet(nn.Module):
    """Linear attention over a state a sequence; its output is normed and gated."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        args, dtype = blueprint.args, blueprint.dtype
        sizes = self._linear = LinearSizes.from_config(args)
        width, values, heads = sum(sizes.widths), sizes.widths[2], sizes.num_value_heads
        self._parts = [width, values, heads, heads]
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        self.in_proj: Linear = blueprint.linear(args.hidden_size, *zip(names, self._parts, strict=True), has_bias=False)
        self.out_proj = blueprint.linear(values, ("out_proj", args.hidden_size), has_bias=False)
        self.conv_weight = nn.Parameter(torch.empty(width, 1, sizes.kernel, dtype=dtype), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.empty(heads, dtype=dtype), requires_grad=False)
        self.log_rate = nn.Parameter(torch.empty(heads, dtype=torch.float32), requires_grad=False)
        self.norm_weight = nn.Parameter(torch.empty(sizes.value_dim, dtype=dtype), requires_grad=False)
        self._eps = args.rms_norm_eps
        self.states: tuple[torch.Tensor, torch.Tensor] | None = None
        """Rows before the next token [slots, K - 1, width] and states float32 [slots, Hv, Dk, Dv]."""

    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """Return the shapes of `states` for one sequence."""
        sizes = self._linear
        return [
            StateShape((sizes.kernel - 1, sum(sizes.widths)), dtype),
            StateShape((sizes.num_value_heads, sizes.key_dim, sizes.value_dim), torch.float32),
        ]

    def forward(self, x: torch.Tensor, runs: list[SequenceRun]) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `runs` cover all rows, in order of their rows."""
        if self.states is None:
            raise RuntimeError("bind_states must come before forward")
        mixed, gate, beta, rate = self.in_proj(x).split(self._parts, -1)
        decay = -self.log_rate.exp() * F.softplus(rate.float() + self.dt_bias)
        before = [[run.read(state) for state in self.states] for run in runs]
        output = torch.empty((*gate.shape[:1], *self._value_shape), dtype=torch.float32, device=x.device)
        for run, (rows, memory) in zip(runs, before, strict=True):
            after = self._advance(run, output, mixed, decay, beta.sigmoid(), rows, memory)
            for state, new in zip(self.states, after, strict=True):
                state.index_copy_(0, run.write_slots, new.to(state.dtype))
        normed = F.rms_norm(output, self.norm_weight.shape, eps=self._eps).to(x.dtype) * self.norm_weight
        gated = normed * F.silu(gate.unflatten(-1, self._value_shape).float())
        result: torch.Tensor = self.out_proj(gated.to(x.dtype).flatten(1))
        return result

    @property
    def _value_shape(self) -> tuple[int, int]:
        return self._linear.num_value_heads, self._linear.value_dim

    def _advance(
        self,
        run: SequenceRun,
        output: torch.Tensor,
        mixed: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor,
        rows: torch.Tensor,
        memory: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the rows of `run` into `output`; return the states behind them."""
        sizes, count = self._linear, run.num_sequences
        convolved, rows = short_convolution(mixed[run.rows].view(count, -1, mixed.shape[-1]), self.conv_weight, rows)
        keys = sizes.widths[0]
        heads = (*convolved.shape[:2], sizes.num_key_heads, sizes.key_dim)
        attended, memory = gated_delta(
            convolved[..., :keys].reshape(heads),
            convolved[..., keys : 2 * keys].reshape(heads),
            convolved[..., 2 * keys :].reshape(*heads[:2], *self._value_shape),
            decay[run.rows].view(count, -1, sizes.num_value_heads),
            beta[run.rows].view(count, -1, sizes.num_value_heads),
            memory,
        )
        output[run.rows] = attended.flatten(0, 1)
        return rows, memory

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.in_proj.weight_targets(prefix)
        yield from self.out_proj.weight_targets(prefix)
        names = {
            "conv1d.weight": "conv_weight",
            "dt_bias": "dt_bias",
            "A_log": "log_rate",
            "norm.weight": "norm_weight",
        }
        for name, attribute in names.items():
            yield whole_parameter(f"{prefix}.{name}", self, attribute)


@dataclass(frozen=True, slots=True)
class SequenceRun:
    """Sequences of a step with equally many tokens, computed together."""

    rows: torch.Tensor
    """int64; rows of the step, sequence after sequence."""
    read_slots: torch.Tensor
    """int64 [N]."""
    write_slots: torch.Tensor
    """int64 [N]."""
    is_new: torch.Tensor
    """bool [N]; whether nothing is computed yet, so that the state is zero."""

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.read_slots)

    def read(self, state: torch.Tensor) -> torch.Tensor:
        """Return the state [N, ...] to go on from, a copy."""
        found = state.index_select(0, self.read_slots)
        return found.masked_fill_(self.is_new.view(-1, *[1] * (found.ndim - 1)), 0)


def sequence_runs(attention: AttentionMetadata) -> list[SequenceRun]:
    """Return the step's sequences, all that bring one token as one run, each other one as a run of its own."""
    slots = attention.state_slots
    if slots is None:
        raise RuntimeError("a step of a model with linear state needs state_slots")
    starts = attention.query_start[:-1].long()
    lengths = attention.query_start[1:].long() - starts
    is_new = attention.seq_lens.long() == lengths
    sizes = lengths.tolist()
    single = [index for index, size in enumerate(sizes) if size == 1]
    groups = ([single] if single else []) + [[index] for index, size in enumerate(sizes) if size > 1]
    runs = []
    for group in groups:
        index = torch.tensor(group, device=starts.device)
        rows = (starts[index][:, None] + torch.arange(sizes[group[0]], device=starts.device)).flatten()
        runs.append(SequenceRun(rows, slots[index, 0], slots[index, 1], is_new[index]))
    return runs


class Qwen35DecoderLayer(nn.Module):
    """A mixer and a feed-forward network, each normed before and added to the residual after."""

    def __init__(self, blueprint: Blueprint, layer: int, *, is_linear: bool) -> None:
        super().__init__()
        args, dtype = blueprint.args, blueprint.dtype
        self.input_layernorm = CenteredRMSNorm(args.hidden_size, args.rms_norm_eps, dtype)
        self.post_attention_layernorm = CenteredRMSNorm(args.hidden_size, args.rms_norm_eps, dtype)
        self.mlp = LlamaMLP(blueprint)
        self.linear_attn = GatedDeltaNet(blueprint) if is_linear else None
        self.self_attn = None if is_linear else GatedAttention(blueprint, layer)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata, runs: list[SequenceRun]
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        normed = self.input_layernorm(x)
        if self.linear_attn is not None:
            x = x + self.linear_attn(normed, runs)
        elif self.self_attn is not None:
            x = x + self.self_attn(normed, positions, attention)
        output: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        for name in ("input_layernorm", "post_attention_layernorm", "mlp", "linear_attn", "self_attn"):
            part = getattr(self, name)
            if part is not None:
                yield from part.weight_targets(f"{prefix}.{name}")


class Qwen35ForCausalLM(nn.Module):
    """`CausalLM` with `HasStates`; see `models.interface`. `attention_backend` and `operations` are for tests and trials."""

    def __init__(
        self, args: ModelArgs, dtype: torch.dtype, *, attention_backend: str = "auto", operations: str = "auto"
    ) -> None:
        super().__init__()
        self.args = args
        self._dtype = dtype
        chosen = select_operations(dtype, torch.get_default_device(), operations)
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size, dtype)
        blueprint = Blueprint(args, dtype, chosen, RotaryEmbedding(args, chosen), attention_backend, operations)
        self.layers = nn.ModuleList(
            Qwen35DecoderLayer(blueprint, layer, is_linear=is_linear)
            for layer, is_linear in enumerate(linear_layers(args))
        )
        self.norm = CenteredRMSNorm(args.hidden_size, args.rms_norm_eps, dtype)
        self.lm_head = None if args.has_tied_embeddings else Embedding(args.vocab_size, args.hidden_size, dtype)

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        reasons = explain_llama(args, may_rotate_parts=True)
        if args.raw.get("attention_bias"):
            reasons.append("its attention has biases")
        missing = [name for name in _LINEAR_FIELDS if not isinstance(args.raw.get(name), int)]
        return reasons + [f"config.json has no {name}" for name in missing]

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`."""
        return [KVCacheShape(self.args.num_kv_heads, self.args.head_dim, self._dtype) for _ in self._attentions()]

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        for attention, kv_cache in zip(self._attentions(), caches, strict=True):
            attention.kv_cache = kv_cache

    def state_shapes(self) -> list[StateShape]:
        """See `HasStates.state_shapes`."""
        return [shape for net in self._linear_attentions() for shape in net.state_shapes(self._dtype)]

    def bind_states(self, states: list[torch.Tensor]) -> None:
        """See `HasStates.bind_states`."""
        pairs = zip(states[::2], states[1::2], strict=True)
        for net, pair in zip(self._linear_attentions(), pairs, strict=True):
            net.states = pair

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        x = self.embed_tokens(token_ids)
        runs = sequence_runs(attention)
        for layer in self.layers:
            x = layer(x, positions, attention, runs)
        normed: torch.Tensor = self.norm(x)
        return normed

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight).float()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        fill_targets(self.weight_targets(), weights, lambda name: name == "lm_head.weight" and self.lm_head is None)

    def weight_targets(self) -> WeightTargets:
        """Yield all tensors, under Hugging Face's names."""
        yield from self.embed_tokens.weight_targets("model.embed_tokens")
        for index, layer in enumerate(self._decoder_layers()):
            yield from layer.weight_targets(f"model.layers.{index}")
        yield from self.norm.weight_targets("model.norm")
        if self.lm_head is not None:
            yield from self.lm_head.weight_targets("lm_head")

    def _decoder_layers(self) -> list[Qwen35DecoderLayer]:
        return cast("list[Qwen35DecoderLayer]", list(self.layers))

    def _attentions(self) -> list[GatedAttention]:
        return [layer.self_attn for layer in self._decoder_layers() if layer.self_attn is not None]

    def _linear_attentions(self) -> list[GatedDeltaNet]:
        return [layer.linear_attn for layer in self._decoder_layers() if layer.linear_attn is not None]


_LINEAR_FIELDS = (
    *("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)


def linear_layers(args: ModelArgs) -> list[bool]:
    """Return which layers are of linear attention: all but every fourth, unless `layer_types` says otherwise."""
    kinds = args.raw.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == args.num_layers:
        return [kind == "linear_attention" for kind in kinds]
    interval = int(args.raw.get("full_attention_interval") or _DEFAULT_INTERVAL)
    return [bool((layer + 1) % interval) for layer in range(args.num_layers)]
