"""How pixels of each kind of media are normalised, by model family. What a worker needs of a model's processors."""

from __future__ import annotations

from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.processors.settings import (
    Defaults,
    Normalisation,
    load_image_settings,
    load_video_settings,
)

HALF = (0.5, 0.5, 0.5)
CLIP_DEFAULTS = Defaults(1, 1)
HALF_DEFAULTS = Defaults(1, 1, mean=HALF, std=HALF)
_HALF_MODELS = ("qwen3_vl", "llava_onevision")


def load_normalisations(files: ModelFiles, args: ModelArgs) -> dict[str, Normalisation]:
    """Return the normalisation by kind of media; raises `ModelLoadError` for broken settings."""
    defaults = HALF_DEFAULTS if args.model_type.startswith(_HALF_MODELS) else CLIP_DEFAULTS
    return {
        "image": load_image_settings(files, defaults).normalisation,
        "video": load_video_settings(files, defaults).normalisation,
    }
