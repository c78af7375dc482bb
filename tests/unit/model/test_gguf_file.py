"""The GGUF reader: what it reads, and that broken files end in one clear error."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tiny_gguf import gguf_bytes, gguf_string, tiny_llama_metadata
from xllm_framework.errors import ModelLoadError
from xllm_framework.model.ggml_types import GGML_TYPES
from xllm_framework.model.gguf_file import GGUFFile

TENSORS = [
    ("token_embd.weight", (64, 8), 0, np.arange(512, dtype=np.float32).tobytes()),
    ("blk.0.attn_q.weight", (64, 3), 3, bytes(range(120))),
]


def read(path, content):
    path.write_bytes(content)
    return GGUFFile(path)


def test_metadata_keep_their_types(tmp_path):
    metadata = {
        "text": "héllo",
        "flag": True,
        "integer": -3,
        "float": 0.5,
        "strings": ["", "ä", "b" * 300],
        "numbers": np.array([1.5, -2.0], np.float32),
        "empty": [],
    }
    file = read(tmp_path / "m.gguf", gguf_bytes(metadata))
    numbers = file.metadata.pop("numbers")
    assert file.metadata == {key: value for key, value in metadata.items() if key != "numbers"}
    assert file.metadata["flag"] is True
    assert numbers.dtype == np.float32
    assert numbers.tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("type_id", "form", "value"),
    [
        *[(0, "B", 200), (1, "b", -3), (2, "H", 60000), (3, "h", -5), (4, "I", 1 << 31), (5, "i", -7)],
        *[(6, "f", 0.25), (7, "B", True), (10, "Q", 1 << 63), (11, "q", -(1 << 62)), (12, "d", 0.1)],
    ],
)
def test_every_scalar_type(tmp_path, type_id, form, value):
    entry = gguf_string("key") + struct.pack(f"<I{form}", type_id, value)
    file = read(tmp_path / "m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    assert file.metadata == {"key": value}
    assert type(file.metadata["key"]) is type(value)


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_are_views_in_numpy_order(tmp_path, version):
    file = read(tmp_path / "m.gguf", gguf_bytes({"general.name": "x"}, TENSORS, version=version))
    embedding, query = file.tensors.values()
    assert (embedding.name, embedding.ggml_type, embedding.shape) == ("token_embd.weight", "F32", (8, 64))
    np.testing.assert_array_equal(embedding.raw.view(np.float32).reshape(8, 64)[1], np.arange(64, 128))
    assert (query.ggml_type, query.shape) == ("Q4_1", (3, 64))
    assert query.raw.dtype == np.uint8
    assert query.raw.tobytes() == bytes(range(120))


def test_alignment_comes_from_the_metadata(tmp_path):
    file = read(tmp_path / "m.gguf", gguf_bytes({"general.alignment": 64}, TENSORS, alignment=64))
    assert file.tensors["blk.0.attn_q.weight"].raw.tobytes() == bytes(range(120))


def test_type_table_equals_the_gguf_packages():
    constants = pytest.importorskip("gguf.constants")
    theirs = {kind.value: (kind.name, *constants.GGML_QUANT_SIZES[kind]) for kind in constants.GGMLQuantizationType}
    ours = {number: tuple(entry) for number, entry in GGML_TYPES.items()}
    assert {number: ours.get(number) for number in theirs} == theirs


def tensor_file(sizes=(64, 2), type_id=0, offset=0, name="w", data=bytes(512)):
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_string(name) + struct.pack("<I", len(sizes))
    header += struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", type_id, offset)
    return header + b"\0" * (-len(header) % 32) + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
        (b"GGUF" + struct.pack("<I", 3), "beyond the end"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "number of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "number of metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64), "length of"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<IIQ", 9, 8, 1 << 61),
            "length of 'k'",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(9), "arrays"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<IQ", 77, 1), "value type 77"),
        (gguf_bytes({"general.alignment": 24}), "alignment"),
        (tensor_file(sizes=(1 << 63, 1 << 63, 1 << 63)), "behind the end"),
        (tensor_file(sizes=(64, 0)), "cannot have rows"),
        (tensor_file(sizes=(63, 2), type_id=3), "cannot have rows of 63"),
        (tensor_file(sizes=(1, 1, 1, 1, 1)), "5 dimensions"),
        (tensor_file(type_id=4), "ggml type 4"),
        (tensor_file(offset=16), "multiple of the alignment"),
        (tensor_file(offset=1 << 63), "behind the end"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path, content, words):
    path = tmp_path / "broken.gguf"
    with pytest.raises(ModelLoadError, match=r"broken\.gguf") as error:
        read(path, content)
    assert words in error.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"nowhere\.gguf cannot be read"):
        GGUFFile(tmp_path / "nowhere.gguf")


def test_every_cut_is_noticed(tmp_path):
    content = gguf_bytes(tiny_llama_metadata(), TENSORS)
    path = tmp_path / "cut.gguf"
    for length in [*range(0, len(content) - 130, 7), *range(len(content) - 130, len(content))]:
        with pytest.raises(ModelLoadError):
            read(path, content[:length])


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_fuzzed_file_is_read_or_refused(tmp_path, flips):
    content = bytearray(gguf_bytes(tiny_llama_metadata(), TENSORS))
    for where, value in flips:
        content[int(where * len(content))] = value
    try:
        file = read(tmp_path / "fuzzed.gguf", bytes(content))
    except ModelLoadError:
        return
    assert all(tensor.raw.nbytes <= len(content) for tensor in file.tensors.values())
