"""A tiny GGUF model and endless broken versions of it: flipped bits, huge counts, moved offsets, cut ends, torn strings."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support.tiny_gguf import gguf_bytes, tiny_llama_metadata
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.errors import XLLMError
from xllm_framework.model import load_model_args, resolve_model
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.worker.native_loading import load_decoder

EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34)}
"""ggml type -> (number, numbers a block, bytes a block)"""


def tiny_model() -> bytes:
    """Return a whole two-layer model whose matrices are of several types."""
    hidden, inner, kv = 64, 128, 32
    draw = np.random.default_rng(0)
    tensors = []

    def add(name: str, kind: str, *sizes: int) -> None:
        number, block, num_bytes = TYPES[kind]
        count = int(np.prod(sizes)) // block
        content = draw.integers(0, 100, (count, num_bytes), np.uint8)
        if kind == "F32":
            content = draw.normal(1, 0.1, count).astype(np.float32).view(np.uint8)
        tensors.append((name, sizes, number, content.tobytes()))

    add("token_embd.weight", "Q8_0", hidden, 8)
    add("output_norm.weight", "F32", hidden)
    for layer, kind in enumerate(("Q4_1", "Q4_0")):
        for name, sizes in (
            ("attn_q", (hidden, hidden)),
            ("attn_k", (hidden, kv)),
            ("attn_v", (hidden, kv)),
            ("attn_output", (hidden, hidden)),
            ("ffn_gate", (hidden, inner)),
            ("ffn_up", (hidden, inner)),
        ):
            add(f"blk.{layer}.{name}.weight", kind, *sizes)
        add(f"blk.{layer}.ffn_down.weight", "F16", inner, hidden)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", "F32", hidden)
    return gguf_bytes(tiny_llama_metadata(), tensors)


def broken_models(count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` broken versions of the tiny model."""
    whole = tiny_model()
    header = whole.index(b"blk.1.ffn_norm.weight") + 60
    draw = random.Random(seed)
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            _break(content, header, draw)
        yield bytes(content)


def load(content: bytes, path: Path) -> bool:
    """Load a file as the native worker does, tokenizer included; whether that was possible. Raises what is no XLLMError."""
    path.write_bytes(content)
    try:
        files = resolve_model(str(path), LoadConfig())
        args = load_model_args(files)
        load_tokenizer(files)
        config = XLLMConfig.from_flat({"model": str(path), "device": "cpu", "threads": 1})
        load_decoder(config, files, args, 128)
    except XLLMError:
        return False
    return True


def _break(content: bytearray, header: int, draw: random.Random) -> None:
    """Do one of many kinds of damage within the header, or to the end of the file."""
    if len(content) < 32:
        return
    place = draw.randrange(min(header, len(content) - 8))
    match draw.randrange(8):
        case 0:
            content[place] ^= 1 << draw.randrange(8)
        case 1:
            content[place] = draw.randrange(256)
        case 2:  # a count, a length, a size or an offset, where one may be
            content[place : place + 8] = struct.pack("<Q", draw.choice(EXTREMES))
        case 3:
            place = draw.choice((4, 8, 16))
            content[place : place + 8] = struct.pack("<Q", draw.choice((*EXTREMES, draw.randrange(64))))
        case 4:
            del content[draw.randrange(len(content)) :]
        case 5:
            end = min(place + draw.randrange(1, 64), header)
            del content[place:end]
        case 6:
            content[place:place] = draw.randbytes(draw.randrange(1, 64))
        case _:  # the same bytes twice
            end = min(place + draw.randrange(1, 200), header)
            content[place:place] = content[place:end]
