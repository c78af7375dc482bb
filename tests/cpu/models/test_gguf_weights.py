"""GGUF files written here with the gguf package, read back as models; and the converted copy's life."""

from __future__ import annotations

import os
import time

import gguf
import numpy as np
import pytest
import torch

from support.loaded_models import load_tiny
from support.paged_runner import PagedRunner
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelFiles, load_model_args
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.weights import load_weights
from xllm_runtime.weights.converted_copy import ConvertedCopy
from xllm_runtime.weights.gguf_names import LAYER_NAMES, OUTER_NAMES, hugging_face_name
from xllm_runtime.weights.safetensors_file import folder_weights

TOKENS = list(range(40, 75))


def gguf_name(name: str) -> str:
    """The inverse of `hugging_face_name`, from the tables."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{ {v: k for k, v in LAYER_NAMES.items()}[part] }.{kind}"
    return f"{ {v: k for k, v in OUTER_NAMES.items()}[stem] }.{kind}"


def write_gguf(path, folder, architecture: str, quantization=gguf.GGMLQuantizationType.F32, skip: str = "") -> None:
    """Write the checkpoint of `folder` as llama.cpp's converter does."""
    args = load_model_args(ModelFiles(folder, "hf", ""))
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(args.max_position_embeddings)
    writer.add_embedding_length(args.hidden_size)
    writer.add_block_count(args.num_layers)
    writer.add_feed_forward_length(args.intermediate_size)
    writer.add_head_count(args.num_heads)
    writer.add_head_count_kv(args.num_kv_heads)
    writer.add_key_length(args.head_dim)
    writer.add_layer_norm_rms_eps(args.rms_norm_eps)
    writer.add_rope_freq_base(args.rope_theta)
    for name, tensor in folder_weights(folder):
        if name == skip:
            continue
        values = tensor.numpy().copy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = args.num_heads if ".q_proj." in name else args.num_kv_heads
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and quantization != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path, cache_dir, dtype=torch.float32) -> dict[str, torch.Tensor]:
    files = ModelFiles(path, "gguf", path.stem)
    return dict(load_weights(files, load_model_args(files), dtype, LoadConfig(cache_dir=str(cache_dir))))


def copies(cache_dir) -> list[str]:
    return sorted(file.name for file in (cache_dir / "converted").glob("*.safetensors"))


def wait_for_copy(cache_dir) -> str:
    """The copy is published in the background; return its name."""
    deadline = time.monotonic() + 60
    while not copies(cache_dir) or list((cache_dir / "converted").glob("*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return copies(cache_dir)[0]


@pytest.mark.parametrize(
    ("architecture", "model_type", "overrides"),
    [
        ("llama", "llama", {}),
        ("llama", "llama", {"tie_word_embeddings": True, "head_dim": 32}),
        ("qwen2", "qwen2", {}),
        ("qwen3", "qwen3", {"head_dim": 16}),
    ],
)
def test_an_unquantised_file_is_the_checkpoint(tmp_path, architecture, model_type, overrides):
    folder = tiny_checkpoint(model_type, **overrides)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, folder, architecture)
    files = ModelFiles(path, "gguf", "tiny")
    args = load_model_args(files)
    expected = PagedRunner(load_tiny(folder)).run_chunked(0, TOKENS, 16)
    for _ in range(2):  # converted, then mapped
        model = LlamaForCausalLM(args, torch.float32)
        model.load_weights(load_weights(files, args, torch.float32, LoadConfig(cache_dir=str(tmp_path))))
        assert torch.equal(PagedRunner(model).run_chunked(0, TOKENS, 16), expected)
        wait_for_copy(tmp_path)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16"])
def test_quantised_tensors_are_those_of_the_gguf_package(tmp_path, name):
    quantization = gguf.GGMLQuantizationType[name]
    folder = tiny_checkpoint("qwen2")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, folder, "qwen2", quantization)
    loaded = read(path, tmp_path)
    for original, tensor in folder_weights(folder):
        expected = tensor
        if tensor.ndim == 2:
            packed = gguf.quants.quantize(tensor.numpy().copy(), quantization)
            expected = torch.from_numpy(gguf.quants.dequantize(packed, quantization))
        assert torch.equal(loaded[original], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_rounded_as_torch_rounds(tmp_path, dtype):
    folder = tiny_checkpoint("llama")
    write_gguf(tmp_path / "tiny.gguf", folder, "llama")
    wide, narrow = read(tmp_path / "tiny.gguf", tmp_path), read(tmp_path / "tiny.gguf", tmp_path, dtype)
    assert all(torch.equal(narrow[name], wide[name].to(dtype)) for name in wide)


def test_stacked_tensors_are_neighbours(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tiny_checkpoint("qwen2"), "qwen2")
    files = ModelFiles(tmp_path / "tiny.gguf", "gguf", "tiny")
    args = load_model_args(files)
    model = LlamaForCausalLM(args, torch.float32)
    model.load_weights(load_weights(files, args, torch.float32, LoadConfig(cache_dir=str(tmp_path))))
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == 1


def test_a_changed_file_replaces_its_copy(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_checkpoint("llama"), "llama")
    read(path, tmp_path)
    first = wait_for_copy(tmp_path)
    write_gguf(path, tiny_checkpoint("llama", seed=1), "llama")
    os.utime(path, ns=(1, 1))
    changed = read(path, tmp_path)
    deadline = time.monotonic() + 60
    while copies(tmp_path) == [first] or len(copies(tmp_path)) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    expected = dict(folder_weights(tiny_checkpoint("llama", seed=1)))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in changed.items())


def test_a_broken_copy_is_made_again(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_checkpoint("llama"), "llama")
    expected = {name: tensor.clone() for name, tensor in read(path, tmp_path).items()}
    copy = tmp_path / "converted" / wait_for_copy(tmp_path)
    copy.write_bytes(copy.read_bytes()[:1000])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read(path, tmp_path).items())


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_checkpoint("llama"), "llama")
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where the folder should be")
    expected = dict(folder_weights(tiny_checkpoint("llama")))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read(path, blocker).items())

    def full_disk(descriptor, start, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read(path, tmp_path).items())
    assert list((tmp_path / "converted").iterdir()) == []


def test_files_of_dead_processes_are_removed(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_checkpoint("llama"), "llama")
    folder = tmp_path / "converted"
    folder.mkdir()
    old, fresh = folder / "other.tmp", folder / "running.tmp"
    for file in (old, fresh):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    copy = ConvertedCopy(path, torch.float32, str(tmp_path))
    copy.allocate(b"header", 10)
    copy._publish()
    assert not old.exists()
    assert fresh.exists()
    assert len(copies(tmp_path)) == 1


def test_a_missing_tensor_is_named(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_checkpoint("llama"), "llama", skip="model.layers.1.mlp.up_proj.weight")
    files = ModelFiles(path, "gguf", "tiny")
    args = load_model_args(files)
    model = LlamaForCausalLM(args, torch.float32)
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        model.load_weights(load_weights(files, args, torch.float32, LoadConfig(cache_dir=str(tmp_path))))


def test_an_unknown_tensor_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(8)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.add_tensor("blk.0.strange.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.strange\.weight'"):
        read(tmp_path / "odd.gguf", tmp_path)


def test_names_map_both_ways():
    assert hugging_face_name("blk.12.attn_q.bias") == "model.layers.12.self_attn.q_proj.bias"
    assert hugging_face_name("output.weight") == "lm_head.weight"
    assert hugging_face_name("blk.0.ffn_gate_exps.weight") is None
    assert hugging_face_name("mtp.weight") is None
