"""What every pipeline offers. Knows nothing of families, batches or requests' lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from xllm_framework.errors import ModelLoadError
from xllm_framework.model.image_pipeline import ImagePipeline
from xllm_framework.request.image_params import ImageParams
from xllm_runtime.models.dit.components import load_image_processor, load_model, load_scheduler, load_tokenizer
from xllm_runtime.models.dit.samples import Sample
from xllm_runtime.models.dit.transformer import Transformer


class Pipeline(Protocol):
    """A loaded pipeline. Used by one thread, under `torch.inference_mode`."""

    transformer: Transformer

    def begin(self, params: ImageParams) -> list[Sample]:
        """Encode the prompts and images of a request and return its samples, one an image, before their first step."""

    def guide(self, predictions: torch.Tensor, scale: float) -> torch.Tensor:
        """Return what to step by: [2, N, C], of the prompt and of the negative one -> [1, N, C]."""

    def latents(self, sample: Sample) -> torch.Tensor:
        """Return a sample's latents as a picture has them: [1, C, h, w]."""

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return pictures [B, 3, H, W] from -1 to 1 of latents [B, C, h, w]."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A pipeline's folder, and where and in which type its parts are loaded."""

    path: Path
    pipeline: ImagePipeline
    dtype: torch.dtype
    device: torch.device

    def model(self, name: str) -> Any:
        """Return a component with weights that is not ours; raises `ModelLoadError`."""
        return load_model(self.path, name, self.class_of(name), self.dtype, self.device)

    def tokenizer(self, name: str) -> Any:
        """Return a tokenizer; raises `ModelLoadError`."""
        return load_tokenizer(self.path, name, self.class_of(name))

    def image_processor(self, name: str) -> Any:
        """Return a processor of images; raises `ModelLoadError`."""
        return load_image_processor(self.path, name, self.class_of(name))

    def scheduler(self) -> Any:
        """Return the scheduler; raises `ModelLoadError`."""
        return load_scheduler(self.path, self.class_of("scheduler"))

    def class_of(self, name: str) -> str:
        """Return the class of a component; raises `ModelLoadError` where there is no such component."""
        if name not in self.pipeline.components:
            raise ModelLoadError(f"{self.path / 'model_index.json'} names no {name}.")
        return self.pipeline.components[name][1]


def classifier_free(predictions: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the negative prediction moved `scale` times towards the prompt's (Ho and Salimans, 2022): [2, N, C] -> [1, N, C]."""
    return predictions[1:] + scale * (predictions[:1] - predictions[1:])
