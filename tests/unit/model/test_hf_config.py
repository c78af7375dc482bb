"""ModelArgs from config.json and its neighbours."""

import json

import pytest

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelFiles, RopeScaling, load_model_args

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


def args_of(folder, config, **others):
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in others.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return load_model_args(ModelFiles(folder, "hf", "m"))


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


def test_llama(tmp_path):
    args = args_of(tmp_path, LLAMA)
    assert (args.vocab_size, args.hidden_size, args.intermediate_size) == (1000, 64, 128)
    assert (args.num_layers, args.num_heads, args.num_kv_heads, args.head_dim) == (4, 8, 2, 8)
    assert (args.max_position_embeddings, args.rms_norm_eps, args.rope_theta) == (512, 1e-5, 500000.0)
    assert (args.dtype, args.activation, args.rope_scaling) == ("bfloat16", "silu", RopeScaling())
    flags = (args.has_tied_embeddings, args.has_qkv_bias, args.has_output_bias, args.has_mlp_bias, args.has_qk_norm)
    assert flags == (False,) * 5
    assert args.raw == LLAMA


def test_llama_with_biases_and_tied_head(tmp_path):
    args = args_of(tmp_path, {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True})
    assert args.has_qkv_bias
    assert args.has_output_bias
    assert args.has_mlp_bias
    assert args.has_tied_embeddings


def test_kv_heads_and_head_dim_by_default(tmp_path):
    args = args_of(tmp_path, {**without(LLAMA, "num_key_value_heads"), "head_dim": None})
    assert (args.num_kv_heads, args.head_dim) == (8, 8)
    assert args_of(tmp_path, {**LLAMA, "head_dim": 32}).head_dim == 32


def test_qwen2_has_biases_on_q_k_and_v_only(tmp_path):
    args = args_of(tmp_path, QWEN2)
    assert args.has_qkv_bias
    assert not args.has_output_bias
    assert not args.has_qk_norm


def test_qwen3_has_norms_and_its_own_head_dim(tmp_path):
    args = args_of(tmp_path, QWEN3)
    assert args.has_qk_norm
    assert not args.has_qkv_bias
    assert args.head_dim == 128


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1}, None, ()),
        ({"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, 32, (1, 2, 3)),
        ({"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}, 32, (0, 1, 2, 3)),
        ({"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 4}, None, ()),
        ({"use_sliding_window": True, "sliding_window": None}, None, ()),
        ({"sliding_window": 32}, None, ()),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
            },
            16,
            (1, 3),
        ),
    ],
)
def test_qwens_sliding_window(tmp_path, changes, window, layers):
    args = args_of(tmp_path, {**QWEN2, **changes})
    assert (args.sliding_window, args.sliding_window_layers) == (window, layers)


def test_mistral_slides_in_every_layer(tmp_path):
    args = args_of(
        tmp_path, {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    )
    assert (args.sliding_window, args.sliding_window_layers) == (64, (0, 1, 2, 3))


LLAMA3_NUMBERS = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("changes", "theta", "scaling", "rotary_factor"),
    [
        ({"rope_scaling": None}, 500000.0, RopeScaling(), 1.0),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3_NUMBERS}},
            500000.0,
            RopeScaling(kind="llama3", parameters=LLAMA3_NUMBERS),
            1.0,
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            500000.0,
            RopeScaling(kind="linear", parameters={"factor": 2.0}),
            1.0,
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            500000.0,
            RopeScaling(kind="yarn", parameters={"factor": 4.0, "original_max_position_embeddings": 512}),
            1.0,
        ),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}, "partial_rotary_factor": 0.5}
            | {"original_max_position_embeddings": 64},
            500000.0,
            RopeScaling(
                kind="longrope",
                parameters={"short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 64},
            ),
            0.5,
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": None}, 1e6, RopeScaling(), 1.0),
        (
            {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 1e4,
                    "factor": 3.0,
                    "partial_rotary_factor": 0.25,
                }
            },
            1e4,
            RopeScaling(kind="dynamic", parameters={"factor": 3.0}),
            0.25,
        ),
        (
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                }
            },
            1e6,
            RopeScaling(kind="linear", parameters={"factor": 8.0}),
            1.0,
        ),
    ],
)
def test_rope_settings_old_and_new(tmp_path, changes, theta, scaling, rotary_factor):
    args = args_of(tmp_path, {**LLAMA, **changes})
    assert (args.rope_theta, args.rope_scaling, args.partial_rotary_factor) == (theta, scaling, rotary_factor)


def test_end_tokens_come_from_three_files(tmp_path):
    args = args_of(
        tmp_path,
        {**LLAMA, "eos_token_id": [7, 8]},
        generation_config={"eos_token_id": [8, 9]},
        tokenizer_config={"eos_token": {"content": "<|eot|>"}},
        tokenizer={
            "added_tokens": [{"id": 4, "content": "x"}, {"id": 5, "content": "<|eot|>"}],
            "model": {"vocab": {}},
        },
    )
    assert args.eos_token_ids == (7, 8, 9, 5)


def test_a_missing_end_token_is_none(tmp_path):
    args = args_of(tmp_path, {**LLAMA, "eos_token_id": None, "bos_token_id": None})
    assert (args.eos_token_ids, args.bos_token_id) == ((), None)


def test_a_nested_text_config(tmp_path):
    outer = {
        "architectures": ["SomeForConditionalGeneration"],
        "model_type": "some_vl",
        "vision_config": {"hidden_size": 9},
    }
    args = args_of(tmp_path, {**outer, "text_config": without(LLAMA, "architectures")})
    assert (args.architecture, args.model_type, args.hidden_size) == ("SomeForConditionalGeneration", "some_vl", 64)
    assert args.raw["vision_config"] == {"hidden_size": 9}


def test_names_of_older_families(tmp_path):
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 10, "n_embd": 12, "n_head": 3}
    args = args_of(tmp_path, {**config, "n_layer": 2, "n_positions": 64, "activation_function": "gelu_new"})
    assert (args.hidden_size, args.num_heads, args.num_layers, args.intermediate_size) == (12, 3, 2, 48)
    assert (args.max_position_embeddings, args.activation, args.has_tied_embeddings) == (64, "gelu_new", True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("architectures", None, "architectures is missing"),
        ("architectures", [], "architectures is missing"),
        ("vocab_size", None, "vocab_size is missing"),
        ("hidden_size", "wide", "hidden_size is 'wide'"),
        ("hidden_size", 0, "hidden_size is 0"),
        ("hidden_size", True, "hidden_size is True"),
        ("hidden_size", 1e300, "hidden_size is 1e+300"),
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000"),
        ("num_key_value_heads", 3, "not a multiple"),
        ("num_attention_heads", 128, "head_dim is missing"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps is nan"),
        ("rope_scaling", {"rope_type": "spiral"}, "'spiral'"),
        ("rope_scaling", "yarn", "rope_scaling is 'yarn'"),
        ("torch_dtype", "int4", "dtype is 'int4'"),
        ("eos_token_id", "</s>", "eos_token_id is '</s>'"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings is 'yes'"),
        ("text_config", 3, "text_config is 3"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path, name, value, words):
    with pytest.raises(ModelLoadError, match=r"config\.json") as error:
        args_of(tmp_path, {**without(LLAMA, "num_key_value_heads"), "num_key_value_heads": 2, name: value})
    assert words in error.value.message


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_a_broken_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model_args(ModelFiles(tmp_path, "hf", "m"))


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: No such file"):
        load_model_args(ModelFiles(tmp_path, "hf", "m"))
