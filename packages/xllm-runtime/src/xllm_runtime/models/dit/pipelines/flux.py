"""FLUX.1 and its variants that follow an image (control) or fill a part of one (fill). Knows nothing of batches."""

from __future__ import annotations

from functools import partial

import torch

from xllm_framework.request.image_params import ImageParams
from xllm_runtime.models.dit.autoencoders import ImageAutoencoder
from xllm_runtime.models.dit.flux import FluxTransformer, flux_rotary, image_positions
from xllm_runtime.models.dit.modulation import ModulationRows
from xllm_runtime.models.dit.operations import Rotary
from xllm_runtime.models.dit.patches import pack, unpack
from xllm_runtime.models.dit.pictures import as_mask, as_picture, resized
from xllm_runtime.models.dit.pipelines.interface import Folder, classifier_free
from xllm_runtime.models.dit.samples import PromptRow, Sample, Schedule
from xllm_runtime.models.dit.schedules import flow_schedule, generator_of, noise
from xllm_runtime.models.dit.text_encoders import ClipEncoder, T5Encoder


class FluxPipeline:
    """See `Pipeline`."""

    def __init__(self, folder: Folder, transformer: FluxTransformer) -> None:
        self.transformer = transformer
        self._input = folder.pipeline.image_input
        self._device = folder.device
        self._autoencoder = ImageAutoencoder(folder.model("vae"))
        self._clip = ClipEncoder(folder.model("text_encoder"), folder.tokenizer("tokenizer"))
        self._t5 = T5Encoder(folder.model("text_encoder_2"), folder.tokenizer("tokenizer_2"))
        self._scheduler = folder.scheduler()
        self._rotaries: dict[tuple[int, int, int], Rotary] = {}

    def begin(self, params: ImageParams) -> list[Sample]:
        """See `Pipeline.begin`."""
        prompts = [(params.prompt, params.prompt_2)]
        if self._input == "none" and params.true_cfg_scale > 1 and params.negative_prompt is not None:
            prompts.append((params.negative_prompt, params.negative_prompt_2))
        encoded = [self._encode(*prompt, params) for prompt in prompts]
        return [self._sample(params, encoded, params.seed + index) for index in range(params.num_images)]

    def guide(self, predictions: torch.Tensor, scale: float) -> torch.Tensor:
        """See `Pipeline.guide`."""
        return classifier_free(predictions, scale)

    def latents(self, sample: Sample) -> torch.Tensor:
        """See `Pipeline.latents`."""
        return unpack(sample.latents, *self._latent_size(sample.width, sample.height))

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """See `Pipeline.decode`."""
        return self._autoencoder.decode(latents)

    def _encode(self, prompt: str, prompt_2: str, params: ImageParams) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the prompt's tokens [L, D] as the blocks have them, and its condition [D]."""
        pooled = self._clip.pooled(prompt)
        tokens = self._t5.tokens(prompt_2 or prompt, params.max_sequence_length)
        transformer = self.transformer
        return transformer.embed_text(tokens), transformer.embed_condition(pooled, params.guidance_scale)

    def _sample(self, params: ImageParams, prompts: list[tuple[torch.Tensor, torch.Tensor]], seed: int) -> Sample:
        height, width = self._latent_size(params.width, params.height)
        generator = generator_of(seed)
        schedule = flow_schedule(self._scheduler, params.num_steps, height * width // 4, self._device, params.strength)
        latents, more_channels = self._start(params, schedule, generator)
        rows = [
            PromptRow(
                ModulationRows(partial(self.transformer.modulation_rows, condition), schedule.timesteps),
                text,
                self._rotary(len(text), height // 2, width // 2),
            )
            for text, condition in prompts
        ]
        return Sample(
            latents=latents,
            schedule=schedule,
            rows=rows,
            width=params.width,
            height=params.height,
            guidance=params.true_cfg_scale,
            more_channels=more_channels,
            seed=seed,
        )

    def _start(
        self, params: ImageParams, schedule: Schedule, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the latents to begin with and what is put beside them; draws random numbers in diffusers' order."""
        height, width = self._latent_size(params.width, params.height)
        shape = (1, self._autoencoder.num_channels, height, width)
        if self._input == "none":
            return pack(noise(shape, generator)).to(self._device), None
        picture = as_picture(resized(params.images[0], params.width, params.height)).to(self._device)
        if self._input == "control":
            control = pack(self._autoencoder.encode(picture, generator))
            return pack(noise(shape, generator)).to(self._device), control
        latents = self._autoencoder.encode(picture, generator)
        start = noise(shape, generator).to(self._device)
        latents = schedule.scheduler.scale_noise(latents, schedule.scheduler.timesteps[:1], start)
        return pack(latents), self._filled(params, picture, generator)

    def _filled(self, params: ImageParams, picture: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return what a fill model sees of the image: the latents of what is kept, and the mask, pixel by pixel."""
        assert params.mask is not None, "the front side has checked it"
        mask = as_mask(params.mask, params.width, params.height).to(self._device)
        kept = pack(self._autoencoder.encode(picture * (1 - mask), generator))
        factor = self._autoencoder.factor
        height, width = self._latent_size(params.width, params.height)
        cells = mask.view(1, height, factor, width, factor)
        return torch.cat((kept, pack(cells.permute(0, 2, 4, 1, 3).flatten(1, 2))), dim=2)

    def _latent_size(self, width: int, height: int) -> tuple[int, int]:
        factor = self._autoencoder.factor
        return height // factor, width // factor

    def _rotary(self, num_text: int, height: int, width: int) -> Rotary:
        """Return the angles of a text of `num_text` tokens, all at the origin, and of a grid."""
        key = (num_text, height, width)
        if key not in self._rotaries:
            self._rotaries.clear()  # sizes come in runs; more than one is not worth its memory
            positions = torch.cat((torch.zeros(num_text, 3, dtype=torch.long), image_positions(height, width)))
            rotary = flux_rotary(positions, self.transformer.axes)
            self._rotaries[key] = Rotary(rotary.cos.to(self._device), rotary.sin.to(self._device))
        return self._rotaries[key]
