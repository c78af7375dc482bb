"""From a GGUF file's metadata and tensor table to `ModelArgs`. Knows nothing of weights' values or of what can be run.

Source of the keys: the GGUF specification, and llama.cpp's converters for what they leave to be guessed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xllm_framework.errors import UnsupportedModel
from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.model.end_tokens import gguf_end_token_ids
from xllm_framework.model.gguf_file import GGUFFile
from xllm_framework.model.model_args import ModelArgs, RopeScaling

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF's name of an architecture -> the class name of config.json."""


def load_gguf_args(file: GGUFFile) -> ModelArgs:
    """Return the arguments of the model in `file`.

    Raises:
        UnsupportedModel: an architecture, or a variant of one, that is not known here.
        ModelLoadError: a key is missing or has a wrong value; names the file and the key.
    """
    metadata, tensors = file.metadata, file.tensors
    config = ConfigFields(metadata, str(file.path))
    name = config.text("general.architecture")
    _check_supported(file, config, name)
    hidden_size = config.integer(f"{name}.embedding_length")
    num_heads = config.integer(f"{name}.attention.head_count")
    num_kv_heads = config.integer(f"{name}.attention.head_count_kv", default=num_heads)
    head_dim = config.integer(f"{name}.attention.key_length", default=hidden_size // num_heads)
    if num_heads % num_kv_heads:
        config.fail(f"{name}.attention.head_count {num_heads} is not a multiple of head_count_kv {num_kv_heads}")
    context = config.integer(f"{name}.context_length")
    return ModelArgs(
        architecture=ARCHITECTURES[name],
        model_type=name,
        vocab_size=_vocab_size(file, config, name),
        hidden_size=hidden_size,
        intermediate_size=config.integer(f"{name}.feed_forward_length"),
        num_layers=config.integer(f"{name}.block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        rms_norm_eps=_float32(config.number(f"{name}.attention.layer_norm_rms_epsilon", default=1e-6)),
        rope_theta=_float32(config.number(f"{name}.rope.freq_base", default=10000.0)),
        rope_scaling=_rope_scaling(file, config, name, context),
        partial_rotary_factor=config.integer(f"{name}.rope.dimension_count", default=head_dim) / head_dim,
        has_tied_embeddings="output.weight" not in tensors,
        has_qkv_bias="blk.0.attn_q.bias" in tensors,
        has_output_bias="blk.0.attn_output.bias" in tensors,
        has_mlp_bias="blk.0.ffn_up.bias" in tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in tensors,
        dtype=_dtype(file),
        bos_token_id=config.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=gguf_end_token_ids(metadata),
        raw={key: value for key, value in metadata.items() if not isinstance(value, list | np.ndarray)},
    )


def _check_supported(file: GGUFFile, config: ConfigFields, name: str) -> None:
    if name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path} holds a model of the architecture {name!r}; of GGUF files {', '.join(ARCHITECTURES)} are known."
        )
    if config.get(f"{name}.expert_count"):
        raise UnsupportedModel(f"{file.path} holds a mixture of experts, which cannot be read from GGUF files.")
    if config.integer("split.count", default=1) > 1:
        raise UnsupportedModel(
            f"{file.path} is one part of a split model: join the parts with llama-gguf-split --merge."
        )


def _vocab_size(file: GGUFFile, config: ConfigFields, name: str) -> int:
    """Return the rows of the embedding: the vocabulary, and padding where the model has some."""
    tokens: Any = file.metadata.get("tokenizer.ggml.tokens")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        if isinstance(tokens, list) and embedding.shape[0] < len(tokens):
            config.fail(f"token_embd.weight has {embedding.shape[0]} rows for {len(tokens)} tokens")
        return embedding.shape[0]
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    return config.integer(f"{name}.vocab_size")


def _rope_scaling(file: GGUFFile, config: ConfigFields, name: str, context: int) -> RopeScaling:
    prefix = f"{name}.rope.scaling"
    original = config.integer(f"{prefix}.original_context_length", default=context)
    short, long, common = (
        _factors(file, config, f"{tensor}.weight")
        for tensor in ("rope_factors_short", "rope_factors_long", "rope_freqs")
    )
    parameters: dict[str, Any] = {}
    if common:
        # Llama 3's scaling comes as the finished divisors of the frequencies, which is what longrope applies.
        parameters = {"short_factor": common, "long_factor": common, "attention_factor": 1.0}
    elif short and long:
        parameters = {"short_factor": short, "long_factor": long}
        if config.get(f"{prefix}.attn_factor") is not None:
            parameters["attention_factor"] = config.number(f"{prefix}.attn_factor", default=1.0)
    if parameters:
        return RopeScaling(kind="longrope", parameters={**parameters, "original_max_position_embeddings": original})
    kind = config.text(f"{prefix}.type", default="none")
    if kind not in ("none", "linear", "yarn"):
        config.fail(f"{prefix}.type is {kind!r}, which is not known")
    if kind == "none":
        return RopeScaling()
    parameters = {"factor": config.number(f"{prefix}.factor", f"{name}.rope.scale_linear", default=1.0)}
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = original
    return RopeScaling(kind=kind, parameters=parameters)


def _factors(file: GGUFFile, config: ConfigFields, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None:
        return []
    if tensor.ggml_type != "F32":
        config.fail(f"tensor {name} has type {tensor.ggml_type}, not F32")
    return [float(value) for value in np.asarray(tensor.raw).view(np.float32)]


def _dtype(file: GGUFFile) -> str:
    """Return the type of the first layer's matrices; quantised ones are computed in float32, as their scales are exact in it."""
    tensor = file.tensors.get("blk.0.attn_q.weight")
    return {"BF16": "bfloat16", "F16": "float16"}.get(tensor.ggml_type if tensor else "", "float32")


def _float32(value: float) -> float:
    """Return the shortest decimal that means the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
