"""What a decoder is built from. Knows nothing of configuration files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and switches of a model of the Llama family (Llama, Qwen2, Qwen3 and what has their shape)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Divides `num_heads`."""
    head_dim: int
    """Even."""
    rotary_dim: int
    """Even, at most `head_dim`; the rest of a head is not rotated."""
    rms_norm_eps: float
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    sliding_windows: list[int]
    """For each layer, how many keys a token sees, itself included; 0 is all."""
