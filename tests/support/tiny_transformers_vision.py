"""Tiny random models of families that xLLM leaves to transformers, with their processors. Knows nothing of xLLM."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from support.tiny_checkpoints import _root, randomise

SPECIAL_TOKENS = {
    "gemma3": ("<pad>", "<eos>", "<bos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    "idefics3": (
        "<pad>",
        "<eos>",
        "<bos>",
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        "<end_of_utterance>",
    ),
}
TEMPLATES = {
    "gemma3": "{{ bos_token }}{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}",
    "idefics3": "{{ bos_token }}{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<end_of_utterance>{% endfor %}",
}
TEXT = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 256,
    "bos_token_id": 258,
    "eos_token_id": 257,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {
            **TEXT,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "vision_config": {**VISION, "vision_use_head": False},
        "mm_tokens_per_image": 4,
        "image_token_index": 261,
        "boi_token_index": 259,
        "eoi_token_index": 260,
    },
    "idefics3": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": VISION,
        "image_token_id": 260,
        "scale_factor": 2,
    },
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "processor_class": "Gemma3Processor",
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 56, "width": 56},
        "image_seq_length": 4,
    },
    "idefics3": {
        "processor_class": "Idefics3Processor",
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 112},
        "max_image_size": {"longest_edge": 56},
        "image_seq_len": 4,
    },
}


@cache
def tiny_left_checkpoint(model_type: str) -> Path:
    """Return the folder of a random float32 model of `model_type`. The folder is shared."""
    import transformers

    folder = Path(tempfile.mkdtemp(dir=_root(), prefix=f"{model_type}-"))
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    randomise(model, 0)
    model.save_pretrained(folder)
    settings = PROCESSORS[model_type]
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    names = {
        name: settings[name] for name in ("processor_class", "image_seq_length", "image_seq_len") if name in settings
    }
    (folder / "processor_config.json").write_text(json.dumps(names))
    _write_tokenizer(folder, model_type)
    return folder


def _write_tokenizer(folder: Path, model_type: str) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS[model_type]])
    tokenizer.save(str(folder / "tokenizer.json"))
    more = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": TEMPLATES[model_type],
        **({"extra_special_tokens": more} if model_type == "gemma3" else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
