"""Prompts as the transformers want them, by the text encoders of the library. Knows nothing of images that are drawn.

Every prompt is encoded alone, so that its encoding never depends on who shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

IMAGE_PLACE = "<|image_pad|>"
"""The token that stands for one piece of an image."""


class ClipEncoder:
    """A CLIP text model and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._num_tokens = min(tokenizer.model_max_length, model.config.max_position_embeddings)

    def pooled(self, prompt: str) -> torch.Tensor:
        """Return the whole prompt as one vector [E]."""
        return self._encode(prompt).pooler_output[0]  # type: ignore[no-any-return]

    def projected(self, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens' hidden states before the last layer [77, E], and the projected vector [P]."""
        encoded = self._encode(prompt, output_hidden_states=True)
        return encoded.hidden_states[-2][0], encoded.text_embeds[0]

    def _encode(self, prompt: str, **options: Any) -> Any:
        ids = self._tokenizer(
            prompt, padding="max_length", max_length=self._num_tokens, truncation=True, return_tensors="pt"
        ).input_ids
        return self._model(ids.to(self._model.device), **options)


class T5Encoder:
    """A T5 encoder and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def tokens(self, prompt: str, num_tokens: int) -> torch.Tensor:
        """Return the prompt's tokens [num_tokens, E]; it is padded or cut to that length."""
        ids = self._tokenizer(
            prompt, padding="max_length", max_length=num_tokens, truncation=True, return_tensors="pt"
        ).input_ids
        return self._model(ids.to(self._model.device))[0][0]  # type: ignore[no-any-return]


class QwenEncoder:
    """Qwen2.5-VL as an encoder: the last hidden states of a chat in which the prompt is the user's message.

    Args:
        image_processor: turns an image into patches; None for pipelines that are given none.
    """

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any = None) -> None:
        self._model, self._tokenizer, self._image_processor = model, tokenizer, image_processor

    def tokens(self, prompt: str, template: str, num_dropped: int, num_tokens: int) -> torch.Tensor:
        """Return [L, E], L at most `num_tokens`: what comes after the first `num_dropped` tokens of the filled template."""
        encoded = self._tokenizer(
            [template.format(prompt)], max_length=num_tokens + num_dropped, truncation=True, return_tensors="pt"
        )
        return self._hidden(dict(encoded))[num_dropped:][:num_tokens]

    def tokens_with_images(self, prompt: str, images: Sequence[Any], template: str, num_dropped: int) -> torch.Tensor:
        """Return [L, E] of a template that holds `IMAGE_PLACE` once for each of `images`, Pillow images."""
        inputs = dict(self._image_processor(images=list(images), return_tensors="pt"))
        before, *parts = template.split(IMAGE_PLACE)
        text = before
        for grid, part in zip(inputs["image_grid_thw"], parts, strict=True):
            text += IMAGE_PLACE * (int(grid.prod()) // self._image_processor.merge_size**2) + part
        text = text.replace("{}", prompt)
        encoded = dict(self._tokenizer([text], return_tensors="pt"))
        is_image = encoded["input_ids"] == self._model.config.image_token_id
        return self._hidden(inputs | encoded | {"mm_token_type_ids": is_image.int()})[num_dropped:]

    def _hidden(self, inputs: dict[str, Any]) -> torch.Tensor:
        inputs = {name: value.to(self._model.device) for name, value in inputs.items()}
        return self._model(**inputs, output_hidden_states=True).hidden_states[-1][0]  # type: ignore[no-any-return]
