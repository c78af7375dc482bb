"""Tiny random embedding models and rerankers, laid out as sentence-transformers and transformers save them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.tiny_checkpoints import SHAPE, randomise, tiny_checkpoint, write_tokenizer

MODULES = ("Transformer", "Pooling", "Normalize")


def embedding_checkpoint(folder: Path, model_type: str, mode: str, modules: tuple[str, ...] = MODULES) -> Path:
    """Copy a tiny causal model to `folder` as an embedding model that pools by `mode`: bare layers, their names without prefix."""
    shutil.copytree(tiny_checkpoint(model_type), folder)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    write_modules(folder, mode, modules)
    return folder


def write_modules(folder: Path, mode: str, modules: tuple[str, ...] = MODULES) -> None:
    """Write modules.json and the pooling module's config.json."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {
            "idx": index,
            "name": str(index),
            "path": paths.get(kind, kind),
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))


def classifier_checkpoint(folder: Path, model_type: str, num_labels: int) -> Path:
    """Write a tiny random classifier of `model_type` to `folder`."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    shape: dict[str, Any] = {**SHAPE, "num_labels": num_labels, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, **shape)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    randomise(model, 3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def word_tokenizer(folder: Path, words: tuple[str, ...]) -> None:
    """Make each of `words` one token, in the rows of the vocabulary that no token uses."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    first = 1 + max(token["id"] for token in content["added_tokens"])
    for offset, word in enumerate(words):
        content["added_tokens"].append(
            {"id": first + offset, "content": word, "special": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        )
    path.write_text(json.dumps(content))
