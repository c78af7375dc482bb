"""What a folder in diffusers' layout can draw, read from its JSON files alone. Knows nothing of how it is drawn.

`model_index.json` names the pipeline's class and each component's; only classes listed here are ever constructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from xllm_framework.errors import ModelLoadError, UnsupportedModel
from xllm_framework.model.json_file import read_json_object

ImageInput = Literal["none", "control", "fill", "edit", "edit_several"]
"""What a pipeline is given beside the prompt: nothing, one image to follow, one with a mask, one or several to edit."""
DEFAULT_LATENT_SIZE = 128
"""Side of the latents that published models draw by default."""


@dataclass(frozen=True, slots=True)
class ImagePipeline:
    """A pipeline and what it draws when nobody says otherwise."""

    class_name: str
    components: dict[str, tuple[str, str]]
    """Component -> (library, class), those that are there."""
    default_size: tuple[int, int]
    """Width and height in pixels."""
    size_multiple: int
    """Width and height must be multiples of this."""
    default_num_steps: int
    default_guidance_scale: float
    default_max_sequence_length: int = 512
    max_sequence_length: int = 512
    default_true_cfg_scale: float = 1.0
    image_input: ImageInput = "none"
    has_fixed_size: bool = False
    max_size: int = 8192
    """Pixels of each side, at most."""
    labels: dict[str, int] = field(default_factory=dict)
    """Names of classes, where classes are the prompts."""


def read_image_pipeline(folder: Path) -> ImagePipeline:
    """Return the pipeline of a folder.

    Raises:
        UnsupportedModel: its class is not drawn here; names those that are.
        ModelLoadError: a file is missing or broken; names it.
    """
    index = read_json_object(folder / "model_index.json")
    class_name = index.get("_class_name")
    describe = _FAMILIES.get(class_name) if isinstance(class_name, str) else None
    if describe is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnsupportedModel(f"The pipeline {class_name!r} of {folder} is not drawn here; these are: {known}.")
    components = {
        name: (entry[0], entry[1])
        for name, entry in index.items()
        if isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
    }
    for name in ("transformer", "vae", "scheduler"):
        if name not in components:
            raise ModelLoadError(f"{folder / 'model_index.json'} names no {name}.")
    try:
        traits = describe(folder, index)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"A configuration of {folder} lacks a setting or has a wrong one: {error}.") from error
    return ImagePipeline(class_name=str(class_name), components=components, **traits)


def vae_factor(config: Mapping[str, Any]) -> int:
    """Return how many pixels a side of a latent stands for."""
    if "block_out_channels" in config:
        return int(2 ** (len(config["block_out_channels"]) - 1))
    return int(2 ** len(config["temperal_downsample"]))


def _configs(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the transformer's configuration and the autoencoder's factor."""
    factor = vae_factor(read_json_object(folder / "vae" / "config.json"))
    return read_json_object(folder / "transformer" / "config.json"), factor


def _flux(folder: Path, _: Mapping[str, Any]) -> dict[str, Any]:
    config, factor = _configs(folder)
    size = DEFAULT_LATENT_SIZE * factor
    traits = {"default_size": (size, size), "size_multiple": 2 * factor}
    if config["guidance_embeds"]:
        return traits | {"default_num_steps": 28, "default_guidance_scale": 3.5}
    return traits | {  # distilled to few steps, as FLUX.1 schnell is
        "default_num_steps": 4,
        "default_guidance_scale": 0.0,
        "default_max_sequence_length": 256,
    }


def _flux_control(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    return _flux(folder, index) | {"image_input": "control"}


def _flux_fill(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    return _flux(folder, index) | {"image_input": "fill", "default_num_steps": 50, "default_guidance_scale": 30.0}


def _qwen_image(folder: Path, _: Mapping[str, Any]) -> dict[str, Any]:
    _, factor = _configs(folder)
    size = DEFAULT_LATENT_SIZE * factor
    return {
        "default_size": (size, size),
        "size_multiple": 2 * factor,
        "default_num_steps": 50,
        "default_guidance_scale": 0.0,
        "default_true_cfg_scale": 4.0,
        "max_sequence_length": 1024,
    }


def _qwen_image_edit(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    return _qwen_image(folder, index) | {"image_input": "edit"}


def _qwen_image_edit_plus(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    return _qwen_image(folder, index) | {"image_input": "edit_several", "default_num_steps": 40}


def _sd3(folder: Path, _: Mapping[str, Any]) -> dict[str, Any]:
    config, factor = _configs(folder)
    size = config["sample_size"] * factor
    return {
        "default_size": (size, size),
        "size_multiple": config["patch_size"] * factor,
        "default_num_steps": 28,
        "default_guidance_scale": 7.0,
        "default_max_sequence_length": 256,
        "max_size": config["pos_embed_max_size"] * config["patch_size"] * factor,
    }


def _class_dit(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    config, factor = _configs(folder)
    size = config["sample_size"] * factor
    labels = {
        name.strip(): int(number) for number, names in index.get("id2label", {}).items() for name in names.split(",")
    }
    return {
        "default_size": (size, size),
        "size_multiple": size,
        "has_fixed_size": True,
        "max_size": size,
        "default_num_steps": 50,
        "default_guidance_scale": 4.0,
        "labels": labels,
    }


_FAMILIES = {
    "FluxPipeline": _flux,
    "FluxControlPipeline": _flux_control,
    "FluxFillPipeline": _flux_fill,
    "QwenImagePipeline": _qwen_image,
    "QwenImageEditPipeline": _qwen_image_edit,
    "QwenImageEditPlusPipeline": _qwen_image_edit_plus,
    "StableDiffusion3Pipeline": _sd3,
    "DiTPipeline": _class_dit,
}
