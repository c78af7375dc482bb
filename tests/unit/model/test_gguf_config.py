"""ModelArgs from GGUF metadata."""

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tiny_gguf import gguf_bytes, tiny_llama_metadata, write_gguf
from xllm_framework.config import LoadConfig
from xllm_framework.errors import ModelLoadError, UnsupportedModel, XLLMError
from xllm_framework.model import ModelFiles, RopeScaling, load_model_args, resolve_model
from xllm_framework.tokenizer import load_tokenizer

F32, Q4_1 = 0, 3


def f32_tensor(name, *sizes):
    return (name, sizes, F32, np.ones(int(np.prod(sizes)), np.float32).tobytes())


def args_of(tmp_path, tensors=(), **changes):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_metadata(**changes), tensors)
    return load_model_args(ModelFiles(path, "gguf", "tiny"))


def test_the_embedded_demo_model():
    args = load_model_args(resolve_model("", LoadConfig()))
    assert (args.architecture, args.model_type) == ("LlamaForCausalLM", "llama")
    assert (args.num_layers, args.hidden_size, args.intermediate_size, args.head_dim) == (30, 576, 1536, 64)
    assert (args.num_heads, args.num_kv_heads, args.vocab_size) == (9, 3, 49152)
    assert (args.max_position_embeddings, args.rope_theta, args.rms_norm_eps) == (8192, 100000.0, 1e-5)
    assert args.has_tied_embeddings
    assert not args.has_qkv_bias
    assert (args.bos_token_id, args.eos_token_ids) == (1, (2, 0))
    assert not any(isinstance(value, list | np.ndarray) for value in args.raw.values())


def test_sizes_and_defaults(tmp_path):
    args = args_of(tmp_path)
    assert (args.vocab_size, args.head_dim, args.num_kv_heads) == (8, 16, 2)
    assert args.rope_scaling == RopeScaling()
    assert args.rope_theta == 10000.0
    assert args.partial_rotary_factor == 1.0
    assert args.dtype == "float32"


def test_tensors_tell_of_biases_norms_head_and_padding(tmp_path):
    names = ["blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "output.weight"]
    tensors = [f32_tensor(name, 64) for name in names] + [f32_tensor("token_embd.weight", 64, 10)]
    args = args_of(tmp_path, tensors)
    assert args.has_qkv_bias
    assert args.has_qk_norm
    assert not args.has_tied_embeddings
    assert not args.has_output_bias
    assert args.vocab_size == 10


@pytest.mark.parametrize(("name", "class_name"), [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")])
def test_other_architectures_use_their_own_prefix(tmp_path, name, class_name):
    metadata = {key.replace("llama.", f"{name}."): value for key, value in tiny_llama_metadata().items()}
    metadata |= {"general.architecture": name, f"{name}.attention.key_length": 32}
    path = write_gguf(tmp_path / "q.gguf", metadata)
    args = load_model_args(ModelFiles(path, "gguf", "q"))
    assert (args.architecture, args.model_type, args.head_dim) == (class_name, name, 32)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"type": "none"}, RopeScaling()),
        ({"type": "linear", "factor": 2.0}, RopeScaling(kind="linear", parameters={"factor": 2.0})),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            RopeScaling(kind="yarn", parameters={"factor": 4.0, "original_max_position_embeddings": 32}),
        ),
    ],
)
def test_rope_scaling(tmp_path, changes, expected):
    args = args_of(tmp_path, **{f"llama__rope__scaling__{key}": value for key, value in changes.items()})
    assert args.rope_scaling == expected


def test_llama3_frequency_divisors_become_longrope_factors(tmp_path):
    args = args_of(tmp_path, [f32_tensor("rope_freqs.weight", 8)])
    assert args.rope_scaling.kind == "longrope"
    assert args.rope_scaling.parameters["short_factor"] == args.rope_scaling.parameters["long_factor"] == [1.0] * 8
    assert args.rope_scaling.parameters["attention_factor"] == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__embedding_length": "wide"}, "llama.embedding_length is 'wide'"),
        ({"llama__attention__head_count_kv": 3}, "not a multiple"),
        (
            {"llama__attention__head_count": 128, "llama__attention__head_count_kv": 1},
            "attention.key_length is missing",
        ),
        ({"llama__context_length": -1}, "llama.context_length is -1"),
        ({"llama__rope__scaling__type": "spiral"}, "'spiral'"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, changes, words):
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf") as error:
        args_of(tmp_path, **changes)
    assert words in error.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": "rwkv7"}, "'rwkv7'"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"split__count": 3}, "split"),
    ],
)
def test_what_cannot_be_read_is_unsupported(tmp_path, changes, words):
    with pytest.raises(UnsupportedModel, match=words):
        args_of(tmp_path, **changes)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_fuzzed_file_gives_arguments_and_tokenizer_or_our_errors(tmp_path, flips):
    content = bytearray(gguf_bytes(tiny_llama_metadata()))
    for where, value in flips:
        content[int(where * len(content))] = value
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(bytes(content))
    files = ModelFiles(path, "gguf", "fuzzed")
    for load in (load_model_args, load_tokenizer):
        with contextlib.suppress(XLLMError):
            load(files)
