"""Writes small GGUF files byte by byte, valid ones and, with the arguments to match, broken ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TensorSpec = tuple[str, tuple[int, ...], int, bytes]
"""Name, sizes in GGUF's order (rows first), ggml type number, data."""


def gguf_string(text: str) -> bytes:
    """Return a length-prefixed string."""
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def gguf_value(value: Any) -> bytes:
    """Return the type number and the bytes of a bool, int, float, string, or a list or array of one kind."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, np.ndarray):
        kinds = {"float32": 6, "int32": 5, "uint8": 0}
        return struct.pack("<IIQ", 9, kinds[value.dtype.name], len(value)) + value.tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(gguf_string(item) for item in value)


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Sequence[TensorSpec] = (), *, version: int = 3, alignment: int = 32
) -> bytes:
    """Return a whole file; tensor data are laid out in order, each on an aligned offset."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(gguf_string(key) + gguf_value(value) for key, value in metadata.items())
    data = b""
    for name, sizes, type_id, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        header += gguf_string(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        header += struct.pack("<IQ", type_id, len(data))
        data += content
    return header + b"\0" * (-len(header) % alignment) + data


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorSpec] = ()) -> Path:
    """Write a file and return its path."""
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def tiny_llama_metadata(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a two-layer Llama with eight tokens; a change to None removes the key."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "1"],
        "tokenizer.ggml.token_type": np.array([3, 3, 3, 1, 1, 1, 1, 1], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}",
    }
    metadata.update({key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}
