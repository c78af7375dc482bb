"""Builds xLLM models from checkpoints, with every choice open to the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from xllm_framework.config import ModelConfig
from xllm_framework.model import ModelArgs, ModelFiles, load_model_args
from xllm_runtime.models import select_model
from xllm_runtime.models.interface import CausalLM, KeepsQuantised
from xllm_runtime.weights import load_weights


def model_files(folder: Path) -> ModelFiles:
    """Return the files of a folder in Hugging Face layout."""
    return ModelFiles(folder, "hf", folder.name)


def load_tiny(folder: Path, model_impl: str = "auto", args: ModelArgs | None = None, **options: Any) -> CausalLM:
    """Return the float32 model of `folder`, loaded; `options` go to the model's class."""
    files = model_files(folder)
    args = args or load_model_args(files)
    model = select_model(args, ModelConfig(model_impl=model_impl)).build(args, torch.float32, **options)
    kept = model.kept_layers() if isinstance(model, KeepsQuantised) else frozenset()
    model.load_weights(load_weights(files, args, torch.float32, kept=kept))
    return model
