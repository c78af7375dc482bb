"""Class-conditional diffusion transformers: prompts are names of classes, which `model_index.json` lists. Knows nothing of batches."""

from __future__ import annotations

from functools import partial

import torch

from xllm_framework.request.image_params import ImageParams
from xllm_runtime.models.dit.autoencoders import ImageAutoencoder
from xllm_runtime.models.dit.class_dit import ClassTransformer
from xllm_runtime.models.dit.modulation import ModulationRows
from xllm_runtime.models.dit.patches import from_tokens, to_tokens
from xllm_runtime.models.dit.pipelines.interface import Folder, classifier_free
from xllm_runtime.models.dit.samples import PromptRow, Sample
from xllm_runtime.models.dit.schedules import generator_of, noise, shifted_schedule


class ClassPipeline:
    """See `Pipeline`. The class that guidance moves away from is the one behind the last: no class."""

    def __init__(self, folder: Folder, transformer: ClassTransformer) -> None:
        self.transformer = transformer
        self._device = folder.device
        self._labels = folder.pipeline.labels
        self._autoencoder = ImageAutoencoder(folder.model("vae"))
        self._scheduler = folder.scheduler()

    def begin(self, params: ImageParams) -> list[Sample]:
        """See `Pipeline.begin`."""
        classes = [self._labels[params.prompt]]
        if params.guidance_scale > 1:
            classes.append(self.transformer.num_classes)
        return [self._sample(params, classes, params.seed + index) for index in range(params.num_images)]

    def guide(self, predictions: torch.Tensor, scale: float) -> torch.Tensor:
        """See `Pipeline.guide`."""
        return classifier_free(predictions, scale)

    def latents(self, sample: Sample) -> torch.Tensor:
        """See `Pipeline.latents`."""
        factor = self._autoencoder.factor
        return from_tokens(sample.latents, self.transformer.patch, sample.height // factor, sample.width // factor)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """See `Pipeline.decode`."""
        return self._autoencoder.decode(latents)

    def _sample(self, params: ImageParams, classes: list[int], seed: int) -> Sample:
        factor = self._autoencoder.factor
        shape = (1, self.transformer.in_channels, params.height // factor, params.width // factor)
        latents = to_tokens(noise(shape, generator_of(seed)), self.transformer.patch).to(self._device)
        schedule = shifted_schedule(self._scheduler, params.num_steps, latents.shape[1], self._device)
        rows = [
            PromptRow(
                ModulationRows(
                    partial(self.transformer.modulation_rows, torch.tensor(number, device=self._device)),
                    schedule.timesteps,
                )
            )
            for number in classes
        ]
        return Sample(
            latents=latents,
            schedule=schedule,
            rows=rows,
            width=params.width,
            height=params.height,
            guidance=params.guidance_scale,
            seed=seed,
        )
