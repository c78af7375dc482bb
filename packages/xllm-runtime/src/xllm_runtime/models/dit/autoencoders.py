"""From pictures to latents and back, by diffusers' autoencoders. Knows nothing of how latents are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Pixels = npt.NDArray[np.uint8]


class ImageAutoencoder:
    """diffusers' `AutoencoderKL`, with the shift and scale that make its latents standard."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_channels: int = model.config.latent_channels
        self.factor: int = 2 ** (len(model.config.block_out_channels) - 1)
        self._shift: float = model.config.get("shift_factor") or 0.0
        self._scale: float = model.config.scaling_factor

    def encode(self, picture: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return latents [1, C, h, w], float32, drawn for a picture [1, 3, H, W] of numbers from -1 to 1."""
        posterior = self._model.encode(picture.to(self._model.dtype)).latent_dist
        return (posterior.sample(generator=generator).float() - self._shift) * self._scale  # type: ignore[no-any-return]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return pictures [B, 3, H, W] of latents [B, C, h, w]."""
        scaled = latents / self._scale + self._shift
        return self._model.decode(scaled.to(self._model.dtype), return_dict=False)[0]  # type: ignore[no-any-return]


class QwenImageAutoencoder:
    """diffusers' `AutoencoderKLQwenImage`, a video autoencoder of which one frame is used."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_channels: int = model.config.z_dim
        self.factor: int = 2 ** len(model.config.temperal_downsample)
        shape = (1, self.num_channels, 1, 1, 1)
        self._mean = torch.tensor(model.config.latents_mean).view(shape).to(model.device)
        self._deviation = torch.tensor(model.config.latents_std).view(shape).to(model.device)

    def encode(self, picture: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the most likely latents [1, C, h, w], float32, of a picture [1, 3, H, W] from -1 to 1."""
        encoded = self._model.encode(picture.to(self._model.dtype)[:, :, None]).latent_dist.mode().float()
        return ((encoded - self._mean) / self._deviation)[:, :, 0]  # type: ignore[no-any-return]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return pictures [B, 3, H, W] of latents [B, C, h, w]."""
        scaled = latents[:, :, None] * self._deviation + self._mean
        return self._model.decode(scaled.to(self._model.dtype), return_dict=False)[0][:, :, 0]  # type: ignore[no-any-return]


Autoencoder = ImageAutoencoder | QwenImageAutoencoder


def to_pixels(pictures: torch.Tensor) -> Pixels:
    """Return uint8 [B, H, W, 3] of pictures [B, 3, H, W] from -1 to 1."""
    scaled = (pictures.float() / 2 + 0.5).clamp(0, 1)
    return (scaled * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
