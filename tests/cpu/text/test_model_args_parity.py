"""ModelArgs of the configurations that transformers writes equal what transformers reads from them."""

import pytest
from transformers import AutoConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from xllm_framework.model import ModelFiles, load_model_args

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("config_class", "options"),
    [
        (LlamaConfig, {}),
        (LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 32}),
        (LlamaConfig, {"rope_parameters": LLAMA3, "eos_token_id": [3, 4], "num_key_value_heads": None}),
        (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
        (Qwen2Config, {}),
        (Qwen2Config, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
        (Qwen2Config, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}),
        (Qwen3Config, {"head_dim": 16}),
        (Qwen3Config, {"tie_word_embeddings": True, "attention_bias": True}),
        (MistralConfig, {"sliding_window": 8}),
        (MistralConfig, {"sliding_window": None}),
    ],
)
def test_saved_configurations(tmp_path, config_class, options):
    class_name = config_class.__name__.replace("Config", "ForCausalLM")
    config_class(**{**SMALL, **options}, architectures=[class_name], dtype="bfloat16").save_pretrained(tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    args = load_model_args(ModelFiles(tmp_path, "hf", "m"))
    assert args.architecture == class_name
    assert (args.num_layers, args.num_heads, args.num_kv_heads) == (4, 4, theirs.num_key_value_heads)
    assert (args.vocab_size, args.hidden_size, args.intermediate_size) == (100, 64, 96)
    assert args.head_dim == (getattr(theirs, "head_dim", None) or 16)
    assert args.rms_norm_eps == theirs.rms_norm_eps
    assert args.has_tied_embeddings == theirs.tie_word_embeddings
    assert args.dtype == "bfloat16"
    assert args.rope_theta == theirs.rope_parameters["rope_theta"]
    assert args.rope_scaling.kind == theirs.rope_parameters["rope_type"]
    for name, value in args.rope_scaling.parameters.items():
        assert theirs.rope_parameters.get(name, theirs.max_position_embeddings) == value
    assert args.has_output_bias == getattr(theirs, "attention_bias", False)
    assert args.has_mlp_bias == getattr(theirs, "mlp_bias", False)
    eos = theirs.eos_token_id
    assert args.eos_token_ids == tuple(eos if isinstance(eos, list) else [] if eos is None else [eos])
    layer_types = getattr(theirs, "layer_types", None)
    if layer_types is not None:
        sliding = tuple(index for index, kind in enumerate(layer_types) if kind == "sliding_attention")
        assert args.sliding_window_layers == sliding
    if not args.sliding_window_layers:
        assert args.sliding_window is None
    else:
        assert args.sliding_window == theirs.sliding_window
