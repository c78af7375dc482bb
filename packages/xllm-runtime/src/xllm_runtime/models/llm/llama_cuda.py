"""A decode step of the Llama family on a GPU, from token ids to the most probable tokens, in as few kernels as there are.

Up to 32 rows, five kernels a layer, each reading its weights or its KV at memory speed:

    qkv = norm(hidden) W_qkv        attended = attention(norm, rotate, write KV)      hidden += attended W_o
    gated = silu_and_mul(norm(hidden) W_gate_up)                                      hidden += gated W_down

(six or seven where a layer has experts: `feed_forward_cuda`). Up to 8 rows, products norm what they read; from 9 on, a product
leaves for the next what its norm needs. More rows multiply in cuBLAS, eight kernels a layer, or seven: gates of up to 128 rows are
applied by the product before them where that is faster. Every tensor that outlives a call is the caller's, nothing waits for the
device, nothing is read back: a call can be captured in a CUDA graph. Knows nothing of graphs, batches or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F

from xllm_runtime.layers.experts import SparseMLP, explain_cuda_experts
from xllm_runtime.layers.linear import Linear
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.feed_forward_cuda import (
    AttendedRows,
    DecodeFeedForward,
    DenseFeedForward,
    SparseFeedForward,
)
from xllm_runtime.models.llm.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP

if TYPE_CHECKING:
    from xllm_kernels.cuda.decode import Epilogue, UnfinishedNorm

DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """B sequences, each with one new token, and where the results go; tensors on the GPU."""

    token_ids: torch.Tensor
    """int32 [B]"""
    seq_lens: torch.Tensor
    """int32 [B], tokens with the new one; 0 for unused rows."""
    positions: torch.Tensor
    """int32 [B], where the new tokens stand in the rotary table: after images and videos before their index in the sequence."""
    block_tables: torch.Tensor
    """int32 [B, W]"""
    logits: torch.Tensor
    """[B, V] in the type of the model."""
    best_ids: torch.Tensor
    """int32 [B], the most probable tokens."""
    best: torch.Tensor
    """float32 [B], their logits."""


def why_no_decode_step(model: CausalLM, block_size: int) -> list[str]:
    """Return every reason why `LlamaDecodeStep` cannot compute `model` over blocks of `block_size`; empty when it can."""
    if not isinstance(model, LlamaForCausalLM):
        return [f"{type(model).__name__} has no fused decode step"]
    weight = model.embed_tokens.weight
    if weight.device.type != "cuda":
        return [f"the model is on {weight.device}"]
    from xllm_kernels import explain

    missing = explain("decode_attention", str(weight.device))
    if missing:
        return missing
    return _reasons_against(model, block_size)


def _reasons_against(model: LlamaForCausalLM, block_size: int) -> list[str]:
    from xllm_kernels.cuda.decode import why_no_decode_attention

    args, reasons = model.args, []
    dtype = model.embed_tokens.weight.dtype
    if dtype not in DTYPES:
        reasons.append("only bfloat16 and float16 have a fused decode step")
    if args.has_mlp_bias:
        reasons.append("its feed-forward network has biases")
    if args.sliding_window and args.sliding_window_layers:
        reasons.append("some of its layers have sliding windows")
    if any(type(layer) is not LlamaDecoderLayer for layer in model.decoder_layers()):
        reasons.append("its layers are not Llama's")
    elif any(type(layer.mlp) not in (LlamaMLP, SparseMLP) for layer in model.decoder_layers()):
        reasons.append("its feed-forward networks are not Llama's or Qwen3-MoE's")
    if args.partial_rotary_factor != 1.0:
        reasons.append("only parts of its heads are rotated")
    reason = why_no_decode_attention(args.num_heads, args.num_kv_heads, args.head_dim, block_size)
    if reason is not None:
        reasons.append(reason)
    for sizes in {layer.mlp.sizes for layer in model.decoder_layers() if isinstance(layer.mlp, SparseMLP)}:
        reasons += explain_cuda_experts(sizes, dtype, model.embed_tokens.weight.device)
    widths = (args.hidden_size, args.intermediate_size, args.vocab_size)
    if any(width % 8 for width in widths):
        reasons.append(f"the hidden, intermediate and vocabulary sizes {widths} are not all multiples of 8")
    return reasons


class LlamaDecodeStep:
    """Computes decode steps of `model`, whose KV cache is bound; only constructed when `why_no_decode_step` is empty."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        from xllm_kernels.cuda import decode, ops

        self._model = model
        self._layers = model.decoder_layers()
        self._ops = ops
        self._decode = decode
        self._workspace = decode.shared_workspace(model.embed_tokens.weight.device)
        self._networks = [self._feed_forward(layer) for layer in self._layers]
        self._streamed_rows = min([network.streamed_rows for network in self._networks] + [self._rows_to_stream()])

    @torch.inference_mode()
    def __call__(self, rows: DecodeRows, max_seq_len: int) -> None:
        """Write KV of the new tokens, logits, the most probable tokens. `max_seq_len` bounds seq_lens."""
        hidden = F.embedding(rows.token_ids, self._model.embed_tokens.weight)
        if self._decode.STREAMED_ROWS < len(hidden) <= self._streamed_rows:
            self._run_joined(hidden, rows, max_seq_len)
        elif len(hidden) <= self._streamed_rows:
            self._run_streamed(hidden, rows, max_seq_len)
        else:
            self._run_batched(hidden, rows, max_seq_len)
        self._decode.argmax(rows.logits, self._workspace, token_ids=rows.best_ids, best=rows.best)

    @torch.inference_mode()
    def choose(self, x: torch.Tensor, logits: torch.Tensor, best_ids: torch.Tensor, best: torch.Tensor) -> None:
        """Go on from normalised hidden states `x` [R, H]: set what `DecodeRows` calls so, of R rows."""
        torch.mm(x, self._model.head.weight.t(), out=logits)
        self._decode.argmax(logits, self._workspace, token_ids=best_ids, best=best)

    def _feed_forward(self, layer: LlamaDecoderLayer) -> DecodeFeedForward:
        """Return how the layer's feed-forward network is computed."""
        mlp = layer.mlp
        if isinstance(mlp, SparseMLP):
            return SparseFeedForward(mlp)
        mlp, kinds = cast("LlamaMLP", mlp), self._decode.Epilogue
        products = ((mlp.gate_up_proj, kinds.SILU_AND_MUL), (mlp.down_proj, kinds.ADD_RESIDUAL))
        return DenseFeedForward(mlp, min(self._rows_of_product(linear.weight, kind) for linear, kind in products))

    def _rows_to_stream(self) -> int:
        """Return how many rows a step may have whose attention's products and head all stream."""
        kinds = self._decode.Epilogue
        rows = [self._rows_of_product(layer.self_attn.qkv_proj.weight, kinds.NONE) for layer in self._layers]
        rows += [self._rows_of_product(layer.self_attn.o_proj.weight, kinds.ADD_RESIDUAL) for layer in self._layers]
        return min(rows) if self._rows_of_product(self._model.head.weight, kinds.NONE) else 0

    def _rows_of_product(self, weight: torch.Tensor, kind: Epilogue) -> int:
        """Return how many rows stream through `weight` at most; 0 for none."""
        n, k = weight.shape
        return self._decode.most_rows(n, k, kind)

    def _run_streamed(self, hidden: torch.Tensor, rows: DecodeRows, max_seq_len: int) -> None:
        args, kinds = self._model.args, self._decode.Epilogue
        eps, num_rows = args.rms_norm_eps, len(hidden)
        qkv = hidden.new_empty(num_rows, (args.num_heads + 2 * args.num_kv_heads) * args.head_dim)
        attended = hidden.new_empty(num_rows, args.num_heads * args.head_dim)
        for layer, network in zip(self._layers, self._networks, strict=True):
            attention = layer.self_attn
            self._linear(hidden, attention.qkv_proj, qkv, kinds.NONE, layer.input_layernorm.weight, eps)
            self._attend(layer, qkv, attended, rows, max_seq_len)
            self._linear(attended, attention.o_proj, hidden, kinds.ADD_RESIDUAL)
            network.stream(hidden, layer.post_attention_layernorm.weight, eps)
        head, norm_weight = self._model.head.weight, self._model.norm.weight
        self._decode.linear_stream(hidden, head, out=rows.logits, epilogue=kinds.NONE, norm_weight=norm_weight, eps=eps)

    def _run_joined(self, hidden: torch.Tensor, rows: DecodeRows, max_seq_len: int) -> None:
        args, kinds = self._model.args, self._decode.Epilogue
        eps, num_rows = args.rms_norm_eps, len(hidden)
        qkv = hidden.new_empty(num_rows, (args.num_heads + 2 * args.num_kv_heads) * args.head_dim)
        attended = hidden.new_empty(num_rows, args.num_heads * args.head_dim)
        norm = self._decode.UnfinishedNorm(hidden)
        x: torch.Tensor | UnfinishedNorm = self._ops.rms_norm(hidden, self._layers[0].input_layernorm.weight, eps)
        head, last_norm = self._model.head.weight, self._model.norm.weight
        joins_head = self._decode.why_no_linear_batch(*head.shape) is None
        next_weights = [layer.input_layernorm.weight for layer in self._layers[1:]] + [
            last_norm if joins_head else None
        ]
        for layer, network, next_weight in zip(self._layers, self._networks, next_weights, strict=True):
            qkv_proj, o_proj = layer.self_attn.qkv_proj, layer.self_attn.o_proj
            self._decode.linear_batch(x, qkv_proj.weight, out=qkv, epilogue=kinds.NONE, bias=qkv_proj.bias, eps=eps)
            self._attend(layer, qkv, attended, rows, max_seq_len)
            self._decode.linear_batch(
                attended,
                o_proj.weight,
                out=hidden,
                epilogue=kinds.ADD_RESIDUAL,
                bias=o_proj.bias,
                next_norm=(layer.post_attention_layernorm.weight, norm),
            )
            cast("DenseFeedForward", network).join(norm, hidden, next_weight, eps)
            x = norm
        if joins_head:
            self._decode.linear_batch(x, head, out=rows.logits, epilogue=kinds.NONE, eps=eps)
        else:
            torch.mm(self._ops.rms_norm(hidden, last_norm, eps), head.t(), out=rows.logits)

    def _run_batched(self, hidden: torch.Tensor, rows: DecodeRows, max_seq_len: int) -> None:
        args, ops = self._model.args, self._ops
        eps = args.rms_norm_eps
        attended = hidden.new_empty(len(hidden), args.num_heads * args.head_dim)
        residual = hidden
        x = ops.rms_norm(hidden, self._layers[0].input_layernorm.weight, eps)
        next_norms = [layer.input_layernorm.weight for layer in self._layers[1:]] + [self._model.norm.weight]
        for layer, network, next_norm in zip(self._layers, self._networks, next_norms, strict=True):
            attention = layer.self_attn
            self._attend(layer, attention.qkv_proj(x), attended, rows, max_seq_len)
            norm_weight = layer.post_attention_layernorm.weight
            x = network.batch(AttendedRows(attended, attention.o_proj, norm_weight, next_norm), residual, eps)
        torch.mm(x, self._model.head.weight.t(), out=rows.logits)

    def _linear(
        self,
        x: torch.Tensor,
        linear: Linear,
        out: torch.Tensor,
        epilogue: Epilogue,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        self._decode.linear_stream(
            x,
            linear.weight,
            out=out,
            epilogue=epilogue,
            norm_weight=norm_weight,
            bias=linear.bias,
            eps=eps,
        )

    def _attend(
        self, layer: LlamaDecoderLayer, qkv: torch.Tensor, out: torch.Tensor, rows: DecodeRows, max_seq_len: int
    ) -> None:
        """[B, (Hq + 2 Hk) D] -> out [B, Hq D]."""
        args, attention = self._model.args, layer.self_attn
        heads = qkv.view(len(qkv), -1, args.head_dim)
        key_start, value_start = args.num_heads, args.num_heads + args.num_kv_heads
        self._decode.decode_attention(
            heads[:, :key_start],
            heads[:, key_start:value_start],
            heads[:, value_start:],
            attention.kv_cache,
            rows.block_tables,
            rows.seq_lens,
            self._workspace,
            out=out.view(len(out), -1, args.head_dim),
            scale=args.head_dim**-0.5,
            max_seq_len=max_seq_len,
            cos_sin_cache=self._model.rotary.cos_sin_cache,
            positions=rows.positions,
            q_norm=None if attention.q_norm is None else attention.q_norm.weight,
            k_norm=None if attention.k_norm is None else attention.k_norm.weight,
            eps=args.rms_norm_eps,
        )
