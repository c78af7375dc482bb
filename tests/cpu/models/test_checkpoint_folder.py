"""Checkpoints in Hugging Face layout, whole and broken: what is loaded, and what is said."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.loaded_models import load_tiny
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import ModelLoadError
from xllm_runtime.layers.parameter import ParameterSlot, are_adjacent
from xllm_runtime.weights.safetensors_file import DTYPES, SafetensorsFile, folder_weights
from xllm_runtime.weights.safetensors_layout import lay_out

INDEX = "model.safetensors.index.json"


@pytest.fixture
def single(tmp_path):
    """A private copy of a checkpoint in one file."""
    return shutil.copytree(tiny_checkpoint("llama"), tmp_path / "single")


@pytest.fixture
def sharded(tmp_path):
    """A private copy of a checkpoint in several shards."""
    folder = shutil.copytree(tiny_checkpoint("llama", shard_size="100KB"), tmp_path / "sharded")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def change_tensors(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_shards_hold_the_tensors_of_the_single_file(single, sharded):
    expected = load_file(single / "model.safetensors")
    for folder in (single, sharded):
        loaded = dict(folder_weights(folder))
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_nothing_is_read_before_the_first_tensor_is_asked_for(tmp_path):
    folder_weights(tmp_path / "nowhere")


def test_parameters_are_the_mapped_file(single):
    """Tensors of the right dtype are adopted; only q, k, v are merged into memory of their own."""
    parameters = dict(load_tiny(single).named_parameters())
    sizes = {name: p.untyped_storage().nbytes() for name, p in parameters.items()}
    file_size = (single / "model.safetensors").stat().st_size
    for name in ("embed_tokens.weight", "layers.0.mlp.down_proj.weight", "layers.2.input_layernorm.weight"):
        assert sizes[name] == file_size
    assert sizes["layers.0.self_attn.qkv_proj.weight"] == parameters["layers.0.self_attn.qkv_proj.weight"].nbytes


def test_a_missing_shard_is_named(sharded):
    victim = sorted(sharded.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelLoadError, match=f"shard .*{victim.name} is missing"):
        load_tiny(sharded)


def test_a_tensor_that_the_shard_lacks_is_named(sharded):
    index = json.loads((sharded / INDEX).read_text())
    first, *_, last = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == last)
    index["weight_map"][name] = first
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=f"{first} has no tensor '{name}'"):
        load_tiny(sharded)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}'])
def test_a_broken_index_is_named(sharded, text):
    (sharded / INDEX).write_text(text)
    with pytest.raises(ModelLoadError, match=INDEX):
        load_tiny(sharded)


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_a_cut_file_is_named(single, keep):
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is not a complete safetensors file"):
        load_tiny(single)


@pytest.mark.parametrize(
    "header",
    [
        b"no json at all",
        b"[1]",
        b'{"a": 3}',
        b'{"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [40, 44]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}',
    ],
)
def test_a_broken_header_is_named(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is not a complete safetensors file"):
        SafetensorsFile(path)


def test_an_unaligned_tensor_is_read(tmp_path):
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}} '
    path = tmp_path / "model.safetensors"
    assert (8 + len(header)) % 4
    path.write_bytes(len(header).to_bytes(8, "little") + header + torch.tensor([1.5, -2.0]).numpy().tobytes())
    assert SafetensorsFile(path).tensor("a").tolist() == [1.5, -2.0]


def test_a_layout_is_read_back(tmp_path):
    header, entries = lay_out([("b", "F32", (2, 3)), ("a", "BF16", (4,)), ("c", "F32", ())])
    assert len(header) % 64 == 0
    path = tmp_path / "model.safetensors"
    path.write_bytes(header + bytes(entries[-1].end))
    assert {name: (t.dtype, t.shape) for name, t in load_file(path).items()} == {
        entry.name: (DTYPES[entry.dtype], entry.shape) for entry in entries
    }
    assert list(SafetensorsFile(path).entries.values()) == entries


def test_a_missing_tensor_is_named(single):
    change_tensors(single, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_tiny(single)


def test_a_wrong_shape_is_named(single):
    name = "model.layers.1.self_attn.k_proj.weight"
    change_tensors(single, lambda tensors: tensors.update({name: tensors[name][:-1].contiguous()}))
    with pytest.raises(ModelLoadError, match=rf"{name}' has shape \[31, 64\].* asks for \[32, 64\]"):
        load_tiny(single)


def test_an_unknown_tensor_is_an_error_and_a_known_leftover_is_not(single):
    change_tensors(
        single, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    )
    load_tiny(single)
    change_tensors(single, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}))
    with pytest.raises(ModelLoadError, match=r"q_proj\.bias' of the checkpoint is unknown"):
        load_tiny(single)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"has no weights: model\.safetensors or"),
        (["pytorch_model.bin"], r"pickled weights \(pytorch_model\.bin\), which are never loaded"),
        (["model-00001-of-00002.safetensors"], r"but neither model\.safetensors nor"),
    ],
)
def test_a_folder_without_weights_says_what_it_has(single, files, message):
    (single / "model.safetensors").unlink()
    for name in files:
        (single / name).write_bytes(b"")
    with pytest.raises(ModelLoadError, match=message):
        load_tiny(single)


class TestParameterSlot:
    """Adoption and copying of the parts of one parameter."""

    @staticmethod
    def slot(rows):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.empty(sum(rows), 3), requires_grad=False)
        return module, ParameterSlot(module, "weight", rows)

    def test_neighbours_in_memory_are_adopted(self):
        whole = torch.arange(15.0).view(5, 3)
        module, slot = self.slot([2, 1, 2])
        for part in (2, 0, 1):
            slot.take(part, "w", whole[[slice(0, 2), slice(2, 3), slice(3, 5)][part]])
        assert module.weight.data_ptr() == whole.data_ptr()
        assert torch.equal(module.weight, whole)

    def test_others_are_copied(self):
        whole = torch.arange(15.0).view(5, 3)
        for parts in (
            [whole[:2].clone(), whole[2:].clone()],
            [whole[:2], whole[2:].double()],
            [whole[:2].half(), whole[2:]],
        ):
            module, slot = self.slot([2, 3])
            for part, tensor in enumerate(parts):
                slot.take(part, "w", tensor)
            assert module.weight.data_ptr() != whole.data_ptr()
            assert torch.equal(module.weight, whole)

    def test_adjacency_needs_order_and_no_gap(self):
        whole = torch.arange(12.0).view(4, 3)
        assert are_adjacent([whole[:1], whole[1:3], whole[3:]])
        assert not are_adjacent([whole[1:3], whole[:1]])
        assert not are_adjacent([whole[:1], whole[2:3]])
        assert not are_adjacent([whole[:1], whole[1:2].clone()])
