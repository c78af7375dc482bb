"""The numbers that describe a causal language model. Knows nothing of weights, devices or files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Head = Literal["language", "classifier", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `kind` is Hugging Face's `rope_type`: default, linear, dynamic, yarn, longrope, llama3. `parameters` holds that
    kind's own numbers under their names in config.json.
    """

    kind: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgs:
    """Shape and constants of a decoder-only transformer, from config.json or from GGUF metadata."""

    architecture: str
    """Class name as in config.json's `architectures`, e.g. LlamaForCausalLM; GGUF names, and those of bare layers
    (Qwen3Model), are mapped to these."""
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    partial_rotary_factor: float = 1.0
    head: Head = "language"
    """What stands behind the layers: logits of the next token, one output a label, or nothing (an embedding model)."""
    num_labels: int = 0
    """Outputs of a classifier."""
    has_tied_embeddings: bool = False
    """Whether the head, if there is one, is the embedding; always so where `head` is not `language`."""
    has_qkv_bias: bool = False
    """Biases on the q, k and v projections."""
    has_output_bias: bool = False
    """Bias on the attention's output projection."""
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """RMSNorm over each head of q and k (Qwen3)."""
    activation: str = "silu"
    sliding_window: int | None = None
    """Tokens that a layer of `sliding_window_layers` attends to; None for full attention everywhere."""
    sliding_window_layers: tuple[int, ...] = ()
    dtype: str = "float32"
    """The checkpoint's type: float32, bfloat16 or float16 (GGUF: the type to compute in)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a text: those of config.json, generation_config.json and the tokenizer together."""
    raw: dict[str, Any] = field(default_factory=dict)
    """config.json as it is (GGUF: the metadata without arrays), for implementations that need more."""
