"""Stable Diffusion 3: three text encoders, guidance against a negative prompt. Knows nothing of batches."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from xllm_framework.request.image_params import ImageParams
from xllm_runtime.models.dit.autoencoders import ImageAutoencoder
from xllm_runtime.models.dit.modulation import ModulationRows
from xllm_runtime.models.dit.patches import from_tokens, to_tokens
from xllm_runtime.models.dit.pipelines.interface import Folder, classifier_free
from xllm_runtime.models.dit.samples import PromptRow, Sample
from xllm_runtime.models.dit.schedules import generator_of, noise, shifted_schedule
from xllm_runtime.models.dit.sd3 import SD3Transformer
from xllm_runtime.models.dit.text_encoders import ClipEncoder, T5Encoder


class SD3Pipeline:
    """See `Pipeline`. The T5 encoder may be missing from the folder; its share of the text is zeros then."""

    def __init__(self, folder: Folder, transformer: SD3Transformer) -> None:
        self.transformer = transformer
        self._device = folder.device
        self._autoencoder = ImageAutoencoder(folder.model("vae"))
        self._clips = [
            ClipEncoder(folder.model(f"text_encoder{suffix}"), folder.tokenizer(f"tokenizer{suffix}"))
            for suffix in ("", "_2")
        ]
        has_t5 = "text_encoder_3" in folder.pipeline.components
        self._t5 = T5Encoder(folder.model("text_encoder_3"), folder.tokenizer("tokenizer_3")) if has_t5 else None
        self._scheduler = folder.scheduler()

    def begin(self, params: ImageParams) -> list[Sample]:
        """See `Pipeline.begin`."""
        prompts = [(params.prompt, params.prompt_2)]
        if params.guidance_scale > 1:
            prompts.append((params.negative_prompt or "", params.negative_prompt_2))
        encoded = [self._encode(*prompt, params.max_sequence_length) for prompt in prompts]
        return [self._sample(params, encoded, params.seed + index) for index in range(params.num_images)]

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

    def _encode(self, prompt: str, prompt_2: str, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the prompt's tokens [L, D] as the blocks have them, and its condition [D]."""
        texts = (prompt, prompt_2 or prompt)
        hidden, pooled = zip(
            *(clip.projected(text) for clip, text in zip(self._clips, texts, strict=True)), strict=True
        )
        size = self.transformer.text_features
        clip_tokens = torch.cat(hidden, dim=-1)
        clip_tokens = F.pad(clip_tokens, (0, size - clip_tokens.shape[-1]))
        if self._t5 is None:
            t5_tokens = clip_tokens.new_zeros(num_tokens, size)
        else:
            t5_tokens = self._t5.tokens(prompt, num_tokens)
        tokens = torch.cat((clip_tokens, t5_tokens.to(clip_tokens.dtype)))
        return self.transformer.embed_text(tokens), self.transformer.embed_condition(torch.cat(pooled))

    def _sample(self, params: ImageParams, prompts: list[tuple[torch.Tensor, torch.Tensor]], seed: int) -> Sample:
        factor, patch = self._autoencoder.factor, self.transformer.patch
        height, width = params.height // factor, params.width // factor
        start = noise((1, self._autoencoder.num_channels, height, width), generator_of(seed))
        latents = to_tokens(start, patch).to(self._device)
        schedule = shifted_schedule(self._scheduler, params.num_steps, latents.shape[1], self._device)
        rows = [
            PromptRow(ModulationRows(partial(self.transformer.modulation_rows, condition), schedule.timesteps), text)
            for text, condition in prompts
        ]
        return Sample(
            latents=latents,
            schedule=schedule,
            rows=rows,
            width=params.width,
            height=params.height,
            guidance=params.guidance_scale,
            positions=self.transformer.positions(height // patch, width // patch),
            seed=seed,
        )
