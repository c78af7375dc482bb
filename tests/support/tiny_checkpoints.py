"""Tiny random checkpoints in Hugging Face layout, made with transformers. Each is made once a test session.

Knows nothing of xLLM: whatever loads a folder can be tested with these.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

NUM_BYTE_TOKENS = 256
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 264
"""256 bytes, the special tokens, and some rows that no token uses."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
GPT2_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
}
MAMBA_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "state_size": 8,
    "num_hidden_layers": 2,
    "expand": 2,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
_SHAPES = {"gpt2": GPT2_SHAPE, "mamba": MAMBA_SHAPE}


def tiny_checkpoint(model_type: str, *, shard_size: str = "1GB", seed: int = 0, **overrides: Any) -> Path:
    """Return the folder of a random float32 model of `model_type` (transformers' name, e.g. llama, qwen2, gpt2).

    `overrides` are fields of its config.json. The folder is shared: copy it before you change it.
    """
    return _make(model_type, shard_size, seed, json.dumps(overrides, sort_keys=True))


@cache
def _make(model_type: str, shard_size: str, seed: int, overrides: str) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(tempfile.mkdtemp(dir=_root(), prefix=f"{model_type}-"))
    config = AutoConfig.for_model(model_type, **{**_SHAPES.get(model_type, SHAPE), **json.loads(overrides)})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, seed)
    model.save_pretrained(folder, max_shard_size=shard_size)
    write_tokenizer(folder)
    return folder


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="xllm-tiny-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Fill matrices, biases and norms with numbers large enough that every one of them shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.15, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3, generator=generator)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer without merges (token i is byte i of GPT-2's alphabet), and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
