"""Random weights of the right shapes without torch, for benchmarks without a checkpoint. Knows the Llama family's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from xllm_framework.model import ModelArgs
from xllm_runtime.weights.raw_tensor import RawTensor

DEVIATION = 0.02
SEED = 0
POOL_SIZE = 1_000_003
"""Random numbers that all matrices repeat: a prime, so that no two rows are alike."""


def dummy_raw_weights(args: ModelArgs) -> Iterator[RawTensor]:
    """Yield matrices of small normal numbers in bfloat16, biases of 0 and norms of 1; always the same."""
    pool = _bfloat16(np.random.default_rng(SEED).normal(0, DEVIATION, POOL_SIZE).astype(np.float32))
    for name, shape in llama_tensors(args):
        if len(shape) == 2:
            yield RawTensor(name, "BF16", shape, np.resize(pool, shape[0] * shape[1]).view(np.uint8))
        else:
            value = 0.0 if name.endswith("bias") else 1.0
            yield RawTensor(name, "F32", shape, np.full(shape, value, np.float32).view(np.uint8))


def llama_tensors(args: ModelArgs) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every weight of a model of the family."""
    hidden, inner = args.hidden_size, args.intermediate_size
    query, key_value = args.num_heads * args.head_dim, args.num_kv_heads * args.head_dim
    yield "model.embed_tokens.weight", (args.vocab_size, hidden)
    for layer in range(args.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, outputs, inputs, has_bias in (
            ("self_attn.q_proj", query, hidden, args.has_qkv_bias),
            ("self_attn.k_proj", key_value, hidden, args.has_qkv_bias),
            ("self_attn.v_proj", key_value, hidden, args.has_qkv_bias),
            ("self_attn.o_proj", hidden, query, args.has_output_bias),
            ("mlp.gate_proj", inner, hidden, args.has_mlp_bias),
            ("mlp.up_proj", inner, hidden, args.has_mlp_bias),
            ("mlp.down_proj", hidden, inner, args.has_mlp_bias),
        ):
            yield f"{prefix}{name}.weight", (outputs, inputs)
            if has_bias:
                yield f"{prefix}{name}.bias", (outputs,)
        for name in ("self_attn.q_norm", "self_attn.k_norm") if args.has_qk_norm else ():
            yield f"{prefix}{name}.weight", (args.head_dim,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not args.has_tied_embeddings:
        yield "lm_head.weight", (args.vocab_size, hidden)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, cut off rather than rounded: they are random anyway."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
