"""Qwen-Image, Qwen-Image-Edit, which is given an image to edit, and Edit-Plus, which is given several. Knows nothing of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_runtime.models.dit.autoencoders import QwenImageAutoencoder
from xllm_runtime.models.dit.modulation import ModulationRows
from xllm_runtime.models.dit.operations import Rotary
from xllm_runtime.models.dit.patches import pack, unpack
from xllm_runtime.models.dit.pictures import as_picture, resized
from xllm_runtime.models.dit.pipelines.interface import Folder, classifier_free
from xllm_runtime.models.dit.qwen_image import QwenImageTransformer, qwen_rotary
from xllm_runtime.models.dit.samples import PromptRow, Sample
from xllm_runtime.models.dit.schedules import flow_schedule, generator_of, noise
from xllm_runtime.models.dit.text_encoders import QwenEncoder

TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
TEMPLATE_TOKENS = 34
"""Tokens of `TEMPLATE` in front of the prompt; they are not shown to the transformer."""
EDIT_TEMPLATE = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), "
    "then explain how the user's text instruction should alter or modify the image. Generate a new image that meets the "
    "user's requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n"
    "<|im_start|>user\n{pictures}{}<|im_end|>\n<|im_start|>assistant\n"
)
EDIT_TEMPLATE_TOKENS = 64
ONE_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
NUMBERED_PICTURE = "Picture {}: " + ONE_PICTURE
SHOWN_AREA = 384 * 384
"""Pixels to which Edit-Plus scales images for its text encoder."""
EDITED_AREA = 1024 * 1024
"""Pixels to which an image to edit is scaled, its shape kept."""
EDITED_MULTIPLE = 32


class QwenImagePipeline:
    """See `Pipeline`."""

    def __init__(
        self,
        folder: Folder,
        transformer: QwenImageTransformer,
        edited_area: int = EDITED_AREA,
        shown_area: int = SHOWN_AREA,
    ) -> None:
        self.transformer = transformer
        self._is_editing = folder.pipeline.image_input != "none"
        self._takes_several = folder.pipeline.image_input == "edit_several"
        self._edited_area, self._shown_area = edited_area, shown_area
        self._device = folder.device
        self._autoencoder = QwenImageAutoencoder(folder.model("vae"))
        processor = folder.image_processor("processor") if self._is_editing else None
        self._encoder = QwenEncoder(folder.model("text_encoder"), folder.tokenizer("tokenizer"), processor)
        self._scheduler = folder.scheduler()

    def begin(self, params: ImageParams) -> list[Sample]:
        """See `Pipeline.begin`."""
        prompts = [params.prompt]
        if params.true_cfg_scale > 1 and params.negative_prompt is not None:
            prompts.append(params.negative_prompt)
        texts = [self.transformer.embed_text(encoded) for encoded in self._encode(prompts, params)]
        pictures = [scaled(image, self._edited_area) for image in params.images] if self._is_editing else []
        return [self._sample(params, texts, pictures, params.seed + index) for index in range(params.num_images)]

    def guide(self, predictions: torch.Tensor, scale: float) -> torch.Tensor:
        """See `Pipeline.guide`; each token keeps the length that the prompt's own prediction has."""
        guided = classifier_free(predictions, scale)
        wanted: torch.Tensor = torch.linalg.vector_norm(predictions[:1], dim=-1, keepdim=True)
        length: torch.Tensor = torch.linalg.vector_norm(guided, dim=-1, keepdim=True)
        return guided * (wanted / length)

    def latents(self, sample: Sample) -> torch.Tensor:
        """See `Pipeline.latents`."""
        factor = self._autoencoder.factor
        return unpack(sample.latents, sample.height // factor, sample.width // factor)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """See `Pipeline.decode`."""
        return self._autoencoder.decode(latents)

    def _encode(self, prompts: Sequence[str], params: ImageParams) -> list[torch.Tensor]:
        if not self._is_editing:
            length = params.max_sequence_length
            return [self._encoder.tokens(prompt, TEMPLATE, TEMPLATE_TOKENS, length) for prompt in prompts]
        shown_area = self._shown_area if self._takes_several else self._edited_area
        pictures = [scaled(image, shown_area) for image in params.images]
        places = [NUMBERED_PICTURE.format(number) for number in range(1, len(pictures) + 1)]
        template = EDIT_TEMPLATE.replace("{pictures}", "".join(places) if self._takes_several else ONE_PICTURE)
        return [
            self._encoder.tokens_with_images(prompt, pictures, template, EDIT_TEMPLATE_TOKENS) for prompt in prompts
        ]

    def _sample(self, params: ImageParams, texts: Sequence[torch.Tensor], pictures: Sequence[Any], seed: int) -> Sample:
        factor = self._autoencoder.factor
        height, width = params.height // factor, params.width // factor
        generator = generator_of(seed)
        grids = [(height // 2, width // 2)]
        given = []
        for picture in pictures:
            edited = self._autoencoder.encode(as_picture(picture).to(self._device), generator)
            grids.append((edited.shape[2] // 2, edited.shape[3] // 2))
            given.append(pack(edited))
        latents = pack(noise((1, self._autoencoder.num_channels, height, width), generator)).to(self._device)
        schedule = flow_schedule(self._scheduler, params.num_steps, latents.shape[1], self._device)
        modulation = ModulationRows(partial(self.transformer.modulation_rows, latents), schedule.timesteps)
        return Sample(
            latents=latents,
            schedule=schedule,
            rows=[PromptRow(modulation, text, self._rotary(grids, len(text))) for text in texts],
            width=params.width,
            height=params.height,
            guidance=params.true_cfg_scale,
            more_tokens=torch.cat(given, dim=1) if given else None,
            seed=seed,
        )

    def _rotary(self, grids: Sequence[tuple[int, int]], num_text: int) -> Rotary:
        rotary = qwen_rotary(grids, num_text, self.transformer.axes)
        return Rotary(rotary.cos.to(self._device), rotary.sin.to(self._device))


def scaled(image: RawImage, area: int) -> Any:
    """Return an image of about `area` pixels as Pillow has it, its shape kept, its sides multiples of `EDITED_MULTIPLE`."""
    ratio = image.width / image.height
    width = math.sqrt(area * ratio)
    height = width / ratio
    width, height = (max(round(side / EDITED_MULTIPLE), 1) * EDITED_MULTIPLE for side in (width, height))
    return resized(image, width, height)
