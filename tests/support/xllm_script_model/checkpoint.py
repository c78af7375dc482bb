"""Writes the script model as a folder in Hugging Face layout. Knows nothing of how it is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from xllm_script_model.vocabulary import EOS, SPECIALS, TOKENS, token_id

CHAT_TEMPLATE = (
    "{%- if tools %}{{ '<|tools|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{%- if not loop.last or add_generation_prompt or message['role'] != 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_checkpoint(folder: Path, *, max_position_embeddings: int = 4096) -> Path:
    """Write config.json, tokenizer.json, tokenizer_config.json and model.safetensors into `folder`; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["ScriptForCausalLM"],
        "model_type": "script",
        "vocab_size": len(TOKENS),
        "hidden_size": 2,
        "intermediate_size": 2,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "eos_token_id": token_id(EOS),
        "torch_dtype": "float32",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_one_tensor_file())
    return folder


def _tokenizer() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    alphabet = _printable_bytes()
    vocabulary = {"".join(alphabet[value] for value in token): index for index, token in enumerate(TOKENS)}
    vocabulary = {text: index for text, index in vocabulary.items() if index < len(TOKENS) - len(SPECIALS)}
    added = [
        {
            "id": token_id(special),
            "content": special,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for special in SPECIALS
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _printable_bytes() -> dict[int, str]:
    """Return byte -> character, as byte-level BPE vocabularies write bytes (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(256) if value not in printable]
    return {value: chr(value) for value in printable} | {value: chr(256 + index) for index, value in enumerate(rest)}


def _one_tensor_file() -> bytes:
    """Return a safetensors file with one float32 number: the script model has no weights, but loaders expect a file."""
    header = json.dumps({"model.unused.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + struct.pack("<f", 0.0)
