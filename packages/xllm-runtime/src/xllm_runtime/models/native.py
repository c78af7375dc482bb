"""Which models the C++ decoder of xllm-kernels computes, and how its settings follow from ours. Imports no torch.

Knows nothing of files beyond the types of their tensors, and nothing of steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from xllm_framework.config import ModelConfig
from xllm_framework.model import ModelArgs, ModelFiles, open_gguf
from xllm_kernels.native import DecoderShape
from xllm_runtime.layers.rope_frequencies import cos_sin_table, max_rotary_position, rotary_dim
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.third_party import third_party_models

WeightFormat = Literal["auto", "bf16", "f32", "int8", "int4"]
NATIVE_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
NATIVE_LANGUAGE_PARTS = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
}
"""Models that see -> what their language part would be called alone."""
GGUF_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""What the decoder can repack."""
MAX_HEAD_DIM = 1024


def explain_native(args: ModelArgs, config: ModelConfig, files: ModelFiles | None = None) -> list[str]:
    """Return every reason why the decoder cannot serve this model with these options."""
    reasons = []
    if args.architecture not in NATIVE_ARCHITECTURES:
        reasons.append(f"architecture {args.architecture!r} is not one of {', '.join(NATIVE_ARCHITECTURES)}")
    if config.model_impl == "auto" and args.architecture in third_party_models():
        reasons.append("an installed package brings its own model of that architecture")
    if config.dtype == "float16":
        reasons.append("it does not compute in float16")
    if args.head_dim > MAX_HEAD_DIM or args.num_heads % max(args.num_kv_heads, 1):
        reasons.append(f"it has no heads of {args.head_dim} numbers with {args.num_kv_heads} for {args.num_heads}")
    if files is not None and files.kind == "gguf":
        unknown = sorted({tensor.ggml_type for tensor in open_gguf(files.path).tensors.values()} - set(GGUF_TYPES))
        reasons += [f"the file has tensors of type {name}" for name in unknown]
    if "quantization_config" in args.raw:
        method = (args.raw["quantization_config"] or {}).get("quant_method", "unknown")
        reasons.append(f"it does not read weights quantised by {method}")
    return reasons + explain_llama(args)


def native_language_args(args: ModelArgs) -> ModelArgs | None:
    """Return the arguments of the language part of a model that sees, as if it stood alone; None where it is not known."""
    architecture = NATIVE_LANGUAGE_PARTS.get(args.architecture)
    return None if architecture is None else replace(args, architecture=architecture)


def decoder_shape(args: ModelArgs) -> DecoderShape:
    """Return what the decoder is built from."""
    windows = [0] * args.num_layers
    for layer in args.sliding_window_layers if args.sliding_window else ():
        windows[layer] = args.sliding_window or 0
    return DecoderShape(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_layers=args.num_layers,
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_dim=args.head_dim,
        rotary_dim=rotary_dim(args),
        rms_norm_eps=args.rms_norm_eps,
        has_tied_embeddings=args.has_tied_embeddings,
        has_qkv_bias=args.has_qkv_bias,
        has_output_bias=args.has_output_bias,
        has_mlp_bias=args.has_mlp_bias,
        has_qk_norm=args.has_qk_norm,
        sliding_windows=windows,
    )


def rotary_table(args: ModelArgs, num_positions: int) -> npt.NDArray[np.float32]:
    """Return cosines and sines of positions below `num_positions`, at most those that the scaling is made for."""
    return cos_sin_table(args, min(num_positions, max_rotary_position(args)))


def compute_dtype(args: ModelArgs, config: ModelConfig, files: ModelFiles) -> Literal["float32", "bfloat16"]:
    """Return the type of KV, and of matrices that are not quantised: `dtype`; by itself float32 for such a checkpoint only."""
    if config.dtype != "auto":
        return "float32" if config.dtype == "float32" else "bfloat16"
    if files.kind == "gguf":  # whose quantised weights `args.dtype` calls float32, as that holds them exactly
        query = open_gguf(files.path).tensors.get("blk.0.attn_q.weight")
        return "float32" if query is not None and query.ggml_type == "F32" else "bfloat16"
    return "float32" if args.dtype == "float32" else "bfloat16"


def weight_format(args: ModelArgs, config: ModelConfig, files: ModelFiles) -> WeightFormat:
    """Return how matrices are kept: as they come, unless `quantization` or `dtype` names a form."""
    if config.quantization in ("bf16", "int8", "int4"):
        return config.quantization
    if config.quantization == "auto" and config.dtype == "auto":
        return "auto"
    return "f32" if compute_dtype(args, config, files) == "float32" else "bf16"
