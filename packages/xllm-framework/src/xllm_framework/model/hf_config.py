"""From a Hugging Face folder's configuration files to `ModelArgs`. Knows nothing of weights or of what can be run.

Exact for Llama, Qwen2 and Qwen3; of every other causal model it takes what is common and leaves the rest in `raw`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from xllm_framework.errors import ModelLoadError
from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.model.json_file import read_json_object, read_json_object_if_there
from xllm_framework.model.model_args import Head, ModelArgs
from xllm_framework.model.pooling import is_embedding_model
from xllm_framework.model.rope_config import rope_settings

MAX_LAYERS = 10_000
CLASSIFIER_SUFFIX = "ForSequenceClassification"
_BARE_LAYERS = {
    "LlamaModel": "LlamaForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
}
"""Classes of layers without a head, and those that compute them."""
_QKV_BIAS_ALWAYS = (
    *("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    *("glm4v", "glm4v_text", "glm46v", "glm4v_moe", "glm4v_moe_text"),
)
_QK_NORM_ALWAYS = (
    *("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text"),
    *("qwen3_vl_moe", "qwen3_vl_moe_text"),
)
_TIED_BY_DEFAULT = (
    *("bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text"),
    *("gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "smollm3", "starcoder2"),
)
"""Model types whose config class ties the head when config.json does not say (transformers 5.24)."""
_HEAD_DIM_DEFAULTS = {"qwen3": 128, "qwen3_moe": 128, "gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256}
_DTYPES = {"float64": "float32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16"}


def load_hf_args(folder: Path) -> ModelArgs:
    """Return the arguments of the model in `folder`.

    Raises:
        ModelLoadError: config.json is missing or broken, or lacks a field; names the file and the field.
    """
    path = folder / "config.json"
    raw = read_json_object(path)
    outer = ConfigFields(raw, str(path))
    merged = {**raw, **outer.mapping("text_config")}
    if raw.get("tie_word_embeddings") is not None:
        # Of the whole model, whatever its language part says.
        merged["tie_word_embeddings"] = raw["tie_word_embeddings"]
    config = ConfigFields(merged, str(path))
    named = _architecture(outer, config)
    head = _head(folder, named)
    model_type = config.text("model_type")
    hidden_size = config.integer("hidden_size", "n_embd", "d_model")
    num_heads = config.integer("num_attention_heads", "n_head", "n_heads", "num_heads")
    num_layers = config.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    num_kv_heads = config.integer("num_key_value_heads", "num_kv_heads", "n_head_kv", default=num_heads)
    if num_heads % num_kv_heads:
        config.fail(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    if num_layers > MAX_LAYERS:
        config.fail(f"num_hidden_layers is {num_layers}, more than {MAX_LAYERS}")
    max_positions = config.integer("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=2048)
    rope = rope_settings(config, max_positions, str(path))
    attention_bias = config.flag("attention_bias")
    sliding_window, sliding_window_layers = _sliding_window(config, num_layers)
    return ModelArgs(
        architecture=_BARE_LAYERS.get(named, named),
        model_type=outer.text("model_type", default=model_type),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", "n_inner", "ffn_dim", "d_ff", default=4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, model_type, hidden_size, num_heads),
        max_position_embeddings=max_positions,
        rms_norm_eps=config.number("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", default=1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        partial_rotary_factor=rope.partial_rotary_factor,
        head=head,
        num_labels=_num_labels(config) if head == "classifier" else 0,
        has_tied_embeddings=head != "language"
        or config.flag("tie_word_embeddings", default=model_type in _TIED_BY_DEFAULT),
        has_qkv_bias=attention_bias or model_type in _QKV_BIAS_ALWAYS,
        has_output_bias=attention_bias and model_type not in _QKV_BIAS_ALWAYS,
        has_mlp_bias=config.flag("mlp_bias"),
        has_qk_norm=model_type in _QK_NORM_ALWAYS,
        activation=config.text("hidden_act", "hidden_activation", "activation_function", default="silu"),
        sliding_window=sliding_window,
        sliding_window_layers=sliding_window_layers,
        dtype=_dtype(config),
        bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(folder, config),
        raw=raw,
    )


def _architecture(outer: ConfigFields, config: ConfigFields) -> str:
    architectures = outer.get("architectures") or config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        outer.fail("the field architectures is missing or is not a list of class names")
    return architectures[0]


def _head(folder: Path, architecture: str) -> Head:
    if architecture.endswith(CLASSIFIER_SUFFIX):
        return "classifier"
    return "none" if architecture in _BARE_LAYERS or is_embedding_model(folder) else "language"


def _num_labels(config: ConfigFields) -> int:
    """Return how many outputs a classifier has: transformers counts the names of the labels, two by default."""
    names = config.mapping("id2label")
    return len(names) if names else config.integer("num_labels", default=2)


def _head_dim(config: ConfigFields, model_type: str, hidden_size: int, num_heads: int) -> int:
    default = _HEAD_DIM_DEFAULTS.get(model_type, hidden_size // num_heads)
    return config.integer("head_dim", "kv_channels", default=default)


def _dtype(config: ConfigFields) -> str:
    name = config.text("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    name = _DTYPES.get(name, name)
    if name == "auto":
        return "float32"
    if name not in ("float32", "bfloat16", "float16"):
        config.fail(f"dtype is {name!r}, not float32, bfloat16 or float16")
    return name


def _sliding_window(config: ConfigFields, num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the window and its layers: listed by `layer_types`, or Qwen's rule, or all layers (Mistral's)."""
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return None, ()
    window = config.integer("sliding_window")
    layer_types = config.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or len(layer_types) != num_layers:
            config.fail(f"layer_types must list one kind for each of the {num_layers} layers")
        layers = tuple(index for index, kind in enumerate(layer_types) if kind == "sliding_attention")
    elif config.flag("use_sliding_window"):
        first = config.get("max_window_layers")
        first = 28 if first is None else first
        if not isinstance(first, int) or first < 0:
            config.fail(f"max_window_layers is {first!r}, not a number of layers")
        layers = tuple(range(first, num_layers))
    elif config.text("model_type") in (*_QKV_BIAS_ALWAYS, *_QK_NORM_ALWAYS):
        layers = ()
    else:
        layers = tuple(range(num_layers))
    return (window, layers) if layers else (None, ())


def _eos_token_ids(folder: Path, config: ConfigFields) -> tuple[int, ...]:
    """Return the ids of config.json, generation_config.json and the tokenizer, in this order, each once."""
    generation_path = folder / "generation_config.json"
    generation = ConfigFields(read_json_object_if_there(generation_path), str(generation_path))
    ids = [*config.token_ids("eos_token_id"), *generation.token_ids("eos_token_id"), *_tokenizer_eos_id(folder)]
    return tuple(dict.fromkeys(ids))


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    """The part of tokenizer.json that is needed here; the large rest is skipped without building it."""

    added_tokens: list[_AddedToken] = []


def _tokenizer_eos_id(folder: Path) -> list[int]:
    tokenizer_config = read_json_object_if_there(folder / "tokenizer_config.json")
    eos_token: Any = tokenizer_config.get("eos_token")
    if isinstance(eos_token, dict):
        eos_token = eos_token.get("content")
    path = folder / "tokenizer.json"
    if not eos_token or not path.is_file():
        return []
    try:
        tokens = msgspec.json.decode(path.read_bytes(), type=_AddedTokens).added_tokens
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read as a tokenizer: {error}.") from error
    return [token.id for token in tokens if token.content == eos_token]
