"""OneRec: an encoder over the user's history, a decoder over an item's tokens. The arithmetic is T5's (Raffel et al., 2020).

    memory = norm(encoder(history))                      keys and values of it are computed once a search
    logits = head(norm(decoder(path, memory)))           a path has a handful of tokens, which are computed anew each round

No attention scales its scores, positions are buckets of distances, norms take no mean off, nothing has a bias. Parameters have the
names of transformers' T5. Knows nothing of beams: rows of paths come with the search that each belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.errors import ModelLoadError
from xllm_framework.rec.onerec_args import OneRecArgs

Memory = list[tuple[torch.Tensor, torch.Tensor]]
"""(K, V) of each decoder layer over one history, each [heads, history, d_kv]."""
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""What checkpoints may hold beside `shared.weight`, equal to it."""


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(args.d_model, dtype=dtype), requires_grad=False)
        self._eps = args.layer_norm_eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d_model] -> the same."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)).to(x.dtype)


def _linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype)


class Attention(nn.Module):
    """Attention without a scale; `bias` [heads, queries, keys] is added to the scores."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype, *, has_positions: bool = False) -> None:
        super().__init__()
        inner = args.num_heads * args.d_kv
        self.q = _linear(args.d_model, inner, dtype)
        self.k = _linear(args.d_model, inner, dtype)
        self.v = _linear(args.d_model, inner, dtype)
        self.o = _linear(inner, args.d_model, dtype)
        if has_positions:
            self.relative_attention_bias = nn.Embedding(args.num_buckets, args.num_heads, dtype=dtype)
        self._num_heads = args.num_heads

    def keys_and_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., T, d_model] -> (K, V), each [..., heads, T, d_kv]."""
        return self._heads(self.k(x)), self._heads(self.v(x))

    def forward(
        self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend x [N, T, d_model] over K and V [N or 1, heads, S, d_kv]."""
        attended = F.scaled_dot_product_attention(self._heads(self.q(x)), key, value, attn_mask=bias, scale=1.0)
        output: torch.Tensor = self.o(attended.transpose(1, 2).flatten(2))
        return output

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], self._num_heads, -1).transpose(-3, -2)


class FeedForward(nn.Module):
    """wo(relu(wi(x))), or wo(gelu(wi_0(x)) * wi_1(x))."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self._is_gated = args.feed_forward == "gated-gelu"
        for name in ("wi_0", "wi_1") if self._is_gated else ("wi",):
            setattr(self, name, _linear(args.d_model, args.d_ff, dtype))
        self.wo = _linear(args.d_ff, args.d_model, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d_model] -> the same."""
        if self._is_gated:
            gate, up = cast("nn.Linear", self.wi_0), cast("nn.Linear", self.wi_1)
            inner = F.gelu(gate(x), approximate="tanh") * up(x)
        else:
            inner = F.relu(cast("nn.Linear", self.wi)(x))
        output: torch.Tensor = self.wo(inner)
        return output


class SubLayer(nn.Module):
    """One of a block's parts, with the norm before it; `name` is the part's name in checkpoints."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype, name: str, part: nn.Module) -> None:
        super().__init__()
        setattr(self, name, part)
        self.layer_norm = Norm(args, dtype)
        self._name = name

    @property
    def part(self) -> nn.Module:
        """Attention or a feed-forward network."""
        return cast("nn.Module", getattr(self, self._name))


class Block(nn.Module):
    """Self-attention, attention over the history in decoders, and a feed-forward network."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype, *, is_decoder: bool, is_first: bool) -> None:
        super().__init__()
        parts = [SubLayer(args, dtype, "SelfAttention", Attention(args, dtype, has_positions=is_first))]
        if is_decoder:
            parts.append(SubLayer(args, dtype, "EncDecAttention", Attention(args, dtype)))
        parts.append(SubLayer(args, dtype, "DenseReluDense", FeedForward(args, dtype)))
        self.layer = nn.ModuleList(parts)

    @property
    def self_attention(self) -> Attention:
        """The attention over the same tokens."""
        return cast("Attention", self._at(0).part)

    @property
    def cross_attention(self) -> Attention:
        """The attention over the history; decoders only."""
        return cast("Attention", self._at(1).part)

    def attend(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Add self-attention to x [N, T, d_model]."""
        normed = self._at(0).layer_norm(x)
        attended: torch.Tensor = self.self_attention(normed, *self.self_attention.keys_and_values(normed), bias)
        return x + attended

    def read(self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Add attention over a history's keys and values to x [N, T, d_model]."""
        normed = self._at(1).layer_norm(x)
        rows = normed.flatten(0, 1)[None]  # all rows look at the same keys: one product for all
        attended: torch.Tensor = self.cross_attention(rows, key[None], value[None], None)
        return x + attended.view(x.shape)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """Add the feed-forward network to x."""
        last = self._at(-1)
        fed: torch.Tensor = x + last.part(last.layer_norm(x))
        return fed

    def _at(self, index: int) -> SubLayer:
        return cast("SubLayer", self.layer[index])


class Stack(nn.Module):
    """The blocks of the encoder or the decoder, and the norm behind them."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype, *, is_decoder: bool) -> None:
        super().__init__()
        count = args.num_decoder_layers if is_decoder else args.num_layers
        blocks = (Block(args, dtype, is_decoder=is_decoder, is_first=index == 0) for index in range(count))
        self.block = nn.ModuleList(blocks)
        self.final_layer_norm = Norm(args, dtype)
        self._args = args
        self._is_decoder = is_decoder

    def blocks(self) -> list[Block]:
        """Return the blocks in order."""
        return cast("list[Block]", list(self.block))

    def position_bias(self, length: int) -> torch.Tensor:
        """Return what is added to the scores of `length` tokens: [1, heads, length, length], causal in decoders."""
        table = self.blocks()[0].self_attention.relative_attention_bias.weight
        places = torch.arange(length, device=table.device)
        distances = places[None, :] - places[:, None]
        bias = F.embedding(_buckets(distances, self._args, is_decoder=self._is_decoder), table).permute(2, 0, 1)[None]
        return bias.masked_fill(distances > 0, -math.inf) if self._is_decoder else bias


class OneRecModel(nn.Module):
    """See the module."""

    def __init__(self, args: OneRecArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self.shared = nn.Embedding(args.vocab_size, args.d_model, dtype=dtype)
        self.encoder = Stack(args, dtype, is_decoder=False)
        self.decoder = Stack(args, dtype, is_decoder=True)
        self.lm_head = None if args.has_tied_embeddings else _linear(args.d_model, args.vocab_size, dtype)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy the tensors of a checkpoint.

        Raises:
            ModelLoadError: one is missing, unknown, or of a wrong shape.
        """
        wanted = dict(self.named_parameters())
        ignored = {*COPIES, "lm_head.weight"} if self.lm_head is None else set(COPIES)
        for name, tensor in weights:
            parameter = wanted.pop(name, None)
            if parameter is None:
                if name in ignored:
                    continue
                raise ModelLoadError(f"tensor {name!r} of the checkpoint is unknown to this implementation")
            if parameter.shape != tensor.shape:
                expected = list(parameter.shape)
                raise ModelLoadError(f"tensor {name!r} has shape {list(tensor.shape)}, but {expected} is asked for")
            parameter.data.copy_(tensor)
        if wanted:
            raise ModelLoadError(f"the checkpoint has no tensor {next(iter(wanted))!r}")

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [...] -> [..., d_model]."""
        embedded: torch.Tensor = self.shared(token_ids)
        return embedded

    def encode(self, embedded: torch.Tensor) -> Memory:
        """Return the keys and values of one history [T, d_model] for every decoder layer."""
        x = embedded[None]
        bias = self.encoder.position_bias(len(embedded))
        for block in self.encoder.blocks():
            x = block.feed(block.attend(x, bias))
        memory = self.encoder.final_layer_norm(x)[0]
        return [block.cross_attention.keys_and_values(memory) for block in self.decoder.blocks()]

    def decode(self, paths: torch.Tensor, memory: Memory, context: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits float32 [N, vocab] behind N paths (int64 [N, T], the start token first) over one history.

        `context` [C, d_model] stands before every path.
        """
        x = self.embed(paths)
        if context is not None:
            x = torch.cat([context.expand(len(paths), *context.shape), x], 1)
        bias = self.decoder.position_bias(x.shape[1])
        for block, (key, value) in zip(self.decoder.blocks(), memory, strict=True):
            x = block.feed(block.read(block.attend(x, bias), key, value))
        hidden = self.decoder.final_layer_norm(x[:, -1])
        if self.args.scales_output:
            hidden = hidden * self.args.d_model**-0.5
        head = self.shared if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight).float()


def _buckets(distances: torch.Tensor, args: OneRecArgs, *, is_decoder: bool) -> torch.Tensor:
    """Return the bucket of each distance (key - query): exact ones for near tokens, logarithmic ones for far ones."""
    num_buckets = args.num_buckets
    buckets = torch.zeros_like(distances)
    if is_decoder:
        lengths = (-distances).clamp(min=0)
    else:
        num_buckets //= 2
        buckets = (distances > 0).long() * num_buckets
        lengths = distances.abs()
    num_exact = num_buckets // 2
    far = lengths.clamp(min=1).float().div(num_exact).log() / math.log(args.max_distance / num_exact)
    far_buckets = (num_exact + (far * (num_buckets - num_exact)).long()).clamp(max=num_buckets - 1)
    return buckets + torch.where(lengths < num_exact, lengths, far_buckets)
