"""Loads the parts of a folder in diffusers' layout that are not ours: text encoders, tokenizers, autoencoders, schedulers.

Only classes named here are constructed, and never code from the folder. Knows nothing of how they are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model.json_file import read_json_object
from xllm_runtime.models.dit.schedules import SCHEDULERS
from xllm_runtime.weights.safetensors_file import SafetensorsFile

MODELS = {
    "CLIPTextModel": "transformers",
    "CLIPTextModelWithProjection": "transformers",
    "T5EncoderModel": "transformers",
    "Qwen2_5_VLForConditionalGeneration": "transformers",
    "AutoencoderKL": "diffusers",
    "AutoencoderKLQwenImage": "diffusers",
}
"""Classes of components with weights -> the library that has them."""
TOKENIZERS = frozenset(
    (
        *("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast"),
        *("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"),
    )
)
WEIGHTS_NAME = "diffusion_pytorch_model"
INSTALL_DIFFUSERS = "Add it with: uv pip install 'xllm-runtime[dit]'"


def check_diffusers() -> None:
    """Raises `ModelLoadError` unless diffusers is installed; imports it."""
    try:
        importlib.import_module("diffusers")
    except ImportError as error:
        raise ModelLoadError(f"Drawing images needs diffusers, which is not installed. {INSTALL_DIFFUSERS}.") from error


def load_model(folder: Path, name: str, class_name: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Return a component with weights, in eval mode.

    Raises:
        UnsupportedModel: a class that is not in `MODELS`.
        ModelLoadError: it cannot be loaded; names the component.
    """
    if class_name not in MODELS:
        raise UnsupportedModel(f"The {name} of {folder} is a {class_name}, which is not known here.")
    model_class = getattr(importlib.import_module(MODELS[class_name]), class_name)
    is_of_diffusers = MODELS[class_name] == "diffusers"
    keyword = {"torch_dtype": dtype, "low_cpu_mem_usage": False} if is_of_diffusers else {"dtype": dtype}
    try:
        model = model_class.from_pretrained(folder / name, local_files_only=True, use_safetensors=True, **keyword)
    except Exception as error:  # whatever the libraries raise for a broken folder
        raise ModelLoadError(f"The {name} of {folder} cannot be loaded: {_first_line(error)}") from error
    return model.eval().requires_grad_(False).to(device)


def load_tokenizer(folder: Path, name: str, class_name: str) -> Any:
    """Return a tokenizer; raises as `load_model` does."""
    if class_name not in TOKENIZERS:
        raise UnsupportedModel(f"The {name} of {folder} is a {class_name}, which is not known here.")
    transformers = importlib.import_module("transformers")
    try:
        return transformers.AutoTokenizer.from_pretrained(folder / name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the library raises for a broken folder
        raise ModelLoadError(f"The {name} of {folder} cannot be loaded: {_first_line(error)}") from error


def load_image_processor(folder: Path, name: str, class_name: str) -> Any:
    """Return the image half of Qwen2.5-VL's processor; the video half needs torchvision. Raises as `load_model` does."""
    if class_name not in ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"):
        raise UnsupportedModel(f"The {name} of {folder} is a {class_name}, which is not known here.")
    module = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    try:
        return module.Qwen2VLImageProcessorPil.from_pretrained(folder / name, local_files_only=True)
    except Exception as error:  # whatever the library raises for a broken folder
        raise ModelLoadError(f"The {name} of {folder} cannot be loaded: {_first_line(error)}") from error


def load_scheduler(folder: Path, class_name: str) -> Any:
    """Return a scheduler; raises as `load_model` does."""
    if class_name not in SCHEDULERS:
        known = ", ".join(SCHEDULERS)
        raise UnsupportedModel(f"The scheduler of {folder} is a {class_name}; those known here are {known}.")
    scheduler_class = getattr(importlib.import_module(SCHEDULERS[class_name]), class_name)
    return scheduler_class.from_config(read_json_object(folder / "scheduler" / "scheduler_config.json"))


def transformer_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, CPU tensor) of a component's safetensors files, views of the mapped files.

    Raises:
        ModelLoadError: there is no such file, or one is broken; names it.
    """
    index = folder / f"{WEIGHTS_NAME}.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json_object(index).get("weight_map", {}).values()))
        files = [folder / Path(name).name for name in names]
    else:
        files = [folder / f"{WEIGHTS_NAME}.safetensors"]
    for path in files:
        if not path.is_file():
            raise ModelLoadError(f"There is no {path}.")
        yield from SafetensorsFile(path)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
