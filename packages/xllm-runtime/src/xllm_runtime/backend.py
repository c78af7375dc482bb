"""Which backend serves a model: llm, vlm, dit or rec. Knows the names of architectures, nothing of how they are computed."""

from __future__ import annotations

import json
from typing import Literal

from xllm_framework.config import ModelConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model.source import ModelFiles

ServedBackend = Literal["llm", "vlm", "dit", "rec"]

VLM_ARCHITECTURES: frozenset[str] = frozenset(
    {
        "Glm46VForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    }
)
"""Architectures, as config.json has them, that see images: `auto` serves them by the vlm backend."""
REC_ARCHITECTURES: frozenset[str] = frozenset({"OneRecForConditionalGeneration"})
"""Architectures that are made for recommendation; a language model becomes one by `--backend rec` alone."""


def choose_backend(config: ModelConfig, files: ModelFiles) -> ServedBackend:
    """Return the backend that `config.backend` names, or the one that the model's files ask for.

    Raises:
        UnsupportedModel: the files are of a kind that the named backend does not read, or it does not do `config.task`.
    """
    backend: ServedBackend = _by_files(files) if config.backend == "auto" else config.backend
    if (backend == "dit") != (files.kind == "diffusers"):
        kind = "a folder with model_index.json" if backend == "dit" else "config.json or a .gguf file"
        raise UnsupportedModel(f"The {backend} backend needs {kind}; {files.name} has none.")
    _check_task(config, backend, files)
    return backend


def _check_task(config: ModelConfig, backend: ServedBackend, files: ModelFiles) -> None:
    task, served = config.task, f"{files.name} is served by the {backend} backend"
    if task == "embed" and backend in ("dit", "rec"):
        raise UnsupportedModel(f"The task embed needs a language model; {served}, which makes no vectors of texts.")
    if task == "mm_embed" and backend != "vlm":
        raise UnsupportedModel(f"The task mm_embed needs a model that sees; {served}.")
    if task == "mm_embed" and (config.model_impl == "transformers" or not _architectures(files) & VLM_ARCHITECTURES):
        raise UnsupportedModel(
            f"The task mm_embed needs a vision tower that xLLM computes itself; {files.name} is left to transformers, which "
            "computes pictures and texts together."
        )


def _by_files(files: ModelFiles) -> ServedBackend:
    if files.kind == "diffusers":
        return "dit"
    if files.kind == "gguf":
        return "llm"
    architectures = _architectures(files)
    if architectures & VLM_ARCHITECTURES or _takes_images(files):
        return "vlm"
    return "rec" if architectures & REC_ARCHITECTURES else "llm"


def _takes_images(files: ModelFiles) -> bool:
    """Whether a folder describes a tower and how images are processed, whatever the model is called."""
    if not any((files.path / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        return False
    try:
        return isinstance(json.loads((files.path / "config.json").read_bytes()).get("vision_config"), dict)
    except (OSError, ValueError, AttributeError):
        return False


def _architectures(files: ModelFiles) -> set[str]:
    """Return what config.json calls the model; a broken file is for whoever loads it to explain."""
    try:
        config = json.loads((files.path / "config.json").read_bytes())
        return {name for name in config["architectures"] if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
