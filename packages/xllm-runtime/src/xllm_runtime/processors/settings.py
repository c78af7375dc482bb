"""A model's own settings for its images and videos, from the files beside its weights. Knows nothing of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xllm_framework.model import ModelFiles
from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.model.json_file import read_json_object_if_there

IMAGE_FILE, VIDEO_FILE, COMBINED_FILE = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """(pixel * factor - mean) / std for each of the colours red, green, blue."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """How one kind of media is brought into shape."""

    min_pixels: int
    max_pixels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    normalisation: Normalisation
    raw: dict[str, Any]
    """The file's fields, for what only some models have."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model's processors take where their files say nothing."""

    min_pixels: int
    max_pixels: int
    patch_size: int = 14
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD


def load_image_settings(files: ModelFiles, defaults: Defaults) -> MediaSettings:
    """Return the settings of images.

    Raises:
        ModelLoadError: a value is wrong; names the file and the field.
    """
    return _settings(files, (IMAGE_FILE,), "image_processor", defaults)


def load_video_settings(files: ModelFiles, defaults: Defaults) -> MediaSettings:
    """Return the settings of videos; raises as `load_image_settings` does."""
    return _settings(files, (VIDEO_FILE, IMAGE_FILE), "video_processor", defaults)


def _settings(files: ModelFiles, names: tuple[str, ...], section: str, defaults: Defaults) -> MediaSettings:
    raw, source = _read(files, names, section)
    config = ConfigFields(raw, source)
    size = ConfigFields(config.mapping("size") if isinstance(raw.get("size"), dict) else {}, f"{source}, size")
    min_pixels = config.integer("min_pixels", default=size.integer("shortest_edge", default=defaults.min_pixels))
    max_pixels = config.integer("max_pixels", default=size.integer("longest_edge", default=defaults.max_pixels))
    factor = config.number("rescale_factor", default=1 / 255) if config.flag("do_rescale", default=True) else 1.0
    has_norm = config.flag("do_normalize", default=True)
    return MediaSettings(
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        patch_size=config.integer("patch_size", default=defaults.patch_size),
        temporal_patch_size=config.integer("temporal_patch_size", default=2),
        merge_size=config.integer("merge_size", default=2),
        normalisation=Normalisation(
            factor=factor,
            mean=_colours(config, "image_mean", defaults.mean) if has_norm else (0.0, 0.0, 0.0),
            std=_colours(config, "image_std", defaults.std) if has_norm else (1.0, 1.0, 1.0),
        ),
        raw=raw,
    )


def _read(files: ModelFiles, names: tuple[str, ...], section: str) -> tuple[dict[str, Any], str]:
    """Return the first of the files that is there, else the section of the combined one, else nothing."""
    combined = read_json_object_if_there(files.path / COMBINED_FILE)
    if isinstance(combined.get(section), dict):
        return combined[section], f"{files.path / COMBINED_FILE}, {section}"
    for name in names:
        raw = read_json_object_if_there(files.path / name)
        if raw:
            return raw, str(files.path / name)
    return {}, str(files.path / names[0])


def _colours(config: ConfigFields, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    values = config.get(name)
    if values is None:
        return default
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(value, int | float) for value in values):
        config.fail(f"{name} is {values!r}, not three numbers")
    return tuple(float(value) for value in values)
