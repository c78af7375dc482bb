"""A decode step of the Llama family on a GPU for what `llama_cuda` does not compute: quantised matrices, a cache of 8 bits.

Each layer multiplies as its matrices are stored. Quantised ones stream through a kernel of few rows, with the norm, the residual or the
gate fused where that serves; the rest is cuBLAS, but for plain gates of more rows (`fuses_gates`). Attention is the CUDA kernel's where
types allow, else Triton's. Nothing waits for the device, nothing is read back: a call can be captured in a CUDA graph. Knows nothing of
graphs, batches or sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from xllm_runtime.layers.experts import SparseMLP
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.quantised_experts import QuantisedSparseMLP
from xllm_runtime.layers.quantised_linear import QuantisedLinear
from xllm_runtime.layers.quantised_products import STREAMED_ROWS
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.feed_forward_cuda import fuses_gates, gated_product
from xllm_runtime.models.llm.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP

if TYPE_CHECKING:
    from xllm_kernels.cuda.decode import Epilogue
    from xllm_runtime.models.llm.llama_cuda import DecodeRows

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)
BLOCK_SIZE_STEP = 16
MAX_STREAMED_HEAD_ROWS = 8


def is_wide(model: CausalLM) -> bool:
    """Whether `model` has anything that `llama_cuda` does not compute."""
    if not isinstance(model, LlamaForCausalLM):
        return False
    has_matrices = any(isinstance(part, QuantisedLinear | QuantisedSparseMLP) for part in model.modules())
    return has_matrices or model.keeps_kv_in_8_bits


def why_no_wide_step(model: CausalLM, block_size: int) -> list[str]:
    """Return every reason why `LlamaWideStep` cannot compute `model` over blocks of `block_size`; empty when it can."""
    if not isinstance(model, LlamaForCausalLM):
        return [f"{type(model).__name__} has no decode step of its own"]
    weight, args, layers = model.embed_tokens.weight, model.args, model.decoder_layers()
    if weight.device.type != "cuda":
        return [f"the model is on {weight.device}"]
    from xllm_kernels import explain
    from xllm_kernels.triton import why_no_triton

    missing = why_no_triton()
    reasons = explain("linear_stream", str(weight.device)) + ([] if missing is None else [missing])
    if weight.dtype not in DTYPES:
        reasons.append("only bfloat16 and float16 have a decode step")
    if args.sliding_window and args.sliding_window_layers:
        reasons.append("some of its layers have sliding windows")
    if any(type(layer) is not LlamaDecoderLayer for layer in layers):
        reasons.append("its layers are not Llama's")
    elif any(type(layer.mlp) not in (LlamaMLP, SparseMLP, QuantisedSparseMLP) for layer in layers):
        reasons.append("its feed-forward networks are not Llama's or Qwen3-MoE's")
    experts = [layer.mlp for layer in layers if isinstance(layer.mlp, SparseMLP | QuantisedSparseMLP)]
    if any(not mlp.can_be_captured for mlp in experts):
        reasons.append("its experts are computed by torch")
    if args.partial_rotary_factor != 1.0 or args.head_dim not in HEAD_DIMS or block_size % BLOCK_SIZE_STEP:
        reasons.append("its heads or blocks do not suit the kernels")
    return reasons


class LlamaWideStep:
    """Computes decode steps of `model`, whose KV cache is bound; only constructed when `why_no_wide_step` is empty."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        from xllm_kernels.cuda import decode, quantised

        self._model = model
        self._layers = model.decoder_layers()
        self._decode, self._quantised = decode, quantised
        self._workspace = decode.shared_workspace(model.embed_tokens.weight.device)
        self._operations = model.operations
        self._attention: FusedAttention | PortableAttention = (
            FusedAttention(model) if FusedAttention.serves(model) else PortableAttention(model)
        )

    @torch.inference_mode()
    def __call__(self, rows: DecodeRows, max_seq_len: int) -> None:
        """Write KV of the new tokens, logits, the most probable tokens. `max_seq_len` bounds seq_lens."""
        eps = self._model.args.rms_norm_eps
        hidden = F.embedding(rows.token_ids, self._model.embed_tokens.weight)
        self._attention.begin(rows)
        for layer in self._layers:
            attention = layer.self_attn
            qkv = self._normed_product(hidden, layer.input_layernorm.weight, attention.qkv_proj, eps)
            attended = self._attention.attend(layer, qkv, rows, max_seq_len)
            self._add_product(hidden, attended, attention.o_proj)
            self._add_network(hidden, layer, eps)
        self._finish(hidden, rows, eps)

    def _add_network(self, hidden: torch.Tensor, layer: LlamaDecoderLayer, eps: float) -> None:
        """hidden += network(norm(hidden))."""
        norm_weight, mlp = layer.post_attention_layernorm.weight, layer.mlp
        if not isinstance(mlp, LlamaMLP):
            hidden += mlp(self._operations.rms_norm(hidden, norm_weight, eps))
        elif self._streams(mlp.gate_up_proj, hidden) and mlp.gate_up_proj.bias is None:
            out = hidden.new_empty(len(hidden), sum(mlp.gate_up_proj.rows) // 2)
            kind = self._decode.Epilogue.SILU_AND_MUL
            self._stream(hidden, mlp.gate_up_proj, out, kind, norm_weight, eps)
            self._add_product(hidden, out, mlp.down_proj)
        elif fuses_gates(mlp.gate_up_proj, len(hidden)):
            x = self._operations.rms_norm(hidden, norm_weight, eps)
            self._add_product(hidden, gated_product(x, mlp.gate_up_proj), mlp.down_proj)
        else:
            gate_up = self._normed_product(hidden, norm_weight, mlp.gate_up_proj, eps)
            self._add_product(hidden, self._operations.silu_and_mul(gate_up), mlp.down_proj)

    def _normed_product(self, x: torch.Tensor, norm_weight: torch.Tensor, linear: Linear, eps: float) -> torch.Tensor:
        """Return norm(x) W^T + b."""
        if not self._streams(linear, x):
            product: torch.Tensor = linear(self._operations.rms_norm(x, norm_weight, eps))
            return product
        out = x.new_empty(len(x), sum(linear.rows))
        self._stream(x, linear, out, self._decode.Epilogue.NONE, norm_weight, eps)
        return out

    def _add_product(self, hidden: torch.Tensor, x: torch.Tensor, linear: Linear) -> None:
        """hidden += x W^T + b."""
        if self._streams(linear, x):
            self._stream(x, linear, hidden, self._decode.Epilogue.ADD_RESIDUAL)
        else:
            hidden += linear(x)

    def _streams(self, linear: Linear, x: torch.Tensor) -> bool:
        return isinstance(linear, QuantisedLinear) and linear.matrix is not None and len(x) <= STREAMED_ROWS

    def _stream(
        self,
        x: torch.Tensor,
        linear: Linear,
        out: torch.Tensor,
        epilogue: Epilogue,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        if not isinstance(linear, QuantisedLinear) or linear.matrix is None:
            raise TypeError("only quantised matrices stream here")
        if norm_weight is not None and not self._quantised.quantised_stream_norms(len(x), linear.matrix.k):
            x, norm_weight = self._operations.rms_norm(x, norm_weight, eps), None
        self._quantised.quantised_stream(
            x,
            linear.matrix,
            self._workspace,
            out=out,
            epilogue=epilogue,
            norm_weight=norm_weight,
            bias=linear.bias,
            eps=eps,
        )

    def _finish(self, hidden: torch.Tensor, rows: DecodeRows, eps: float) -> None:
        """Set logits and the most probable tokens."""
        head, norm_weight, kind = self._model.head.weight, self._model.norm.weight, self._decode.Epilogue.NONE
        if len(hidden) > MAX_STREAMED_HEAD_ROWS or self._decode.why_no_linear_stream(
            head.shape[0], head.shape[1], kind
        ):
            x = self._operations.rms_norm(hidden, norm_weight, eps)
            self.choose(x, rows.logits, rows.best_ids, rows.best)
            return
        self._decode.linear_stream(hidden, head, out=rows.logits, epilogue=kind, norm_weight=norm_weight, eps=eps)
        self._decode.argmax(rows.logits, self._workspace, token_ids=rows.best_ids, best=rows.best)

    @torch.inference_mode()
    def choose(self, x: torch.Tensor, logits: torch.Tensor, best_ids: torch.Tensor, best: torch.Tensor) -> None:
        """See `LlamaDecodeStep.choose`."""
        torch.mm(x, self._model.head.weight.t(), out=logits)
        self._decode.argmax(logits, self._workspace, token_ids=best_ids, best=best)


class FusedAttention:
    """Attention of single tokens by the CUDA kernel of the cache's type: norm, rotation, KV write and attention in one."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        from xllm_kernels.cuda import decode, float8_attention

        self._model, self._has_scales = model, model.keeps_kv_in_8_bits
        self._attend = float8_attention.float8_attention if self._has_scales else decode.decode_attention
        self._workspace = decode.shared_workspace(model.embed_tokens.weight.device)

    @classmethod
    def serves(cls, model: LlamaForCausalLM) -> bool:
        """Whether the sizes suit the kernel."""
        from xllm_kernels.cuda.decode import why_no_decode_attention
        from xllm_kernels.cuda.float8_attention import why_no_float8_attention

        explain = why_no_float8_attention if model.keeps_kv_in_8_bits else why_no_decode_attention
        return not explain(model.args.num_heads, model.args.num_kv_heads, model.args.head_dim, BLOCK_SIZE_STEP)

    def begin(self, rows: DecodeRows) -> None:
        """Nothing is shared by the layers of a step."""

    def attend(self, layer: LlamaDecoderLayer, qkv: torch.Tensor, rows: DecodeRows, max_seq_len: int) -> torch.Tensor:
        """[B, (Hq + 2 Hk) D] -> [B, Hq D]."""
        args, attention = self._model.args, layer.self_attn
        query, key, value = split_heads(attention, qkv, args.head_dim)
        out = torch.empty(query.shape, dtype=qkv.dtype, device=qkv.device)
        scales: dict[str, Any] = {"kv_scales": attention.kv_scales} if self._has_scales else {}
        self._attend(
            query,
            key,
            value,
            attention.kv_cache,
            rows.block_tables,
            rows.seq_lens,
            self._workspace,
            out=out,
            scale=args.head_dim**-0.5,
            max_seq_len=max_seq_len,
            cos_sin_cache=self._model.rotary.cos_sin_cache,
            positions=rows.positions,
            q_norm=None if attention.q_norm is None else attention.q_norm.weight,
            k_norm=None if attention.k_norm is None else attention.k_norm.weight,
            eps=args.rms_norm_eps,
            **scales,
        )
        return out.flatten(1)


class PortableAttention:
    """Attention of single tokens by the Triton kernels: bfloat16 or float16, the cache in that type or in 8 bits."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        from xllm_kernels.triton import decode_attention, rows

        self._model = model
        self._rotate_and_write, self._attend = rows.rotate_and_write, decode_attention.decode_attention
        self._slots: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None

    def begin(self, rows: DecodeRows) -> None:
        """Work out once a step where the new tokens lie."""
        block_size = self._layer_cache(0)[0].shape[1]
        last = (rows.seq_lens.long() - 1).clamp(min=0)
        blocks = rows.block_tables.gather(1, (last // block_size).unsqueeze(1)).squeeze(1).long()
        self._slots = torch.where(rows.seq_lens > 0, blocks * block_size + last % block_size, -1)
        self._positions = rows.positions.long()

    def attend(self, layer: LlamaDecoderLayer, qkv: torch.Tensor, rows: DecodeRows, max_seq_len: int) -> torch.Tensor:
        """[B, (Hq + 2 Hk) D] -> [B, Hq D]."""
        args, attention = self._model.args, layer.self_attn
        if self._slots is None or self._positions is None:
            raise RuntimeError("begin must come before attend")
        query, key, value = split_heads(attention, qkv, args.head_dim)
        self._rotate_and_write(
            self._positions,
            query,
            key,
            value,
            self._model.rotary.cos_sin_cache,
            attention.kv_cache,
            self._slots,
            q_norm=None if attention.q_norm is None else attention.q_norm.weight,
            k_norm=None if attention.k_norm is None else attention.k_norm.weight,
            eps=args.rms_norm_eps,
            kv_scales=attention.kv_scales,
        )
        out = torch.zeros(query.shape, dtype=qkv.dtype, device=qkv.device)  # unused rows stay 0
        self._attend(
            query,
            attention.kv_cache,
            rows.block_tables,
            rows.seq_lens,
            out=out,
            scale=args.head_dim**-0.5,
            max_seq_len=max_seq_len,
            kv_scales=attention.kv_scales,
        )
        return out.flatten(1)

    def _layer_cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._model.decoder_layers()[layer].self_attn.kv_cache


def split_heads(
    attention: LlamaAttention, qkv: torch.Tensor, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B, (Hq + 2 Hk) D] -> query [B, Hq, D], key and value [B, Hk, D], views."""
    heads = qkv.view(len(qkv), -1, head_dim)
    num_heads, num_kv_heads, _ = (rows // head_dim for rows in attention.qkv_proj.rows)
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], 1)
    return query, key, value
