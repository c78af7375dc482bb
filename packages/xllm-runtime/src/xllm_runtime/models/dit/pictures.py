"""Given pictures, resized and as numbers, just as diffusers prepares them. Knows nothing of latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from xllm_framework.request.image_params import RawImage

if TYPE_CHECKING:
    from PIL import Image


def to_pillow(image: RawImage) -> Image.Image:
    """Return Pillow's image of the same pixels."""
    from PIL import Image

    mode = "L" if image.num_channels == 1 else "RGB"
    return Image.frombytes(mode, (image.width, image.height), image.pixels)


def resized(image: RawImage, width: int, height: int) -> Image.Image:
    """Return the image at another size, by Lanczos' filter."""
    from PIL import Image

    return to_pillow(image).resize((width, height), resample=Image.Resampling.LANCZOS)


def as_picture(image: Image.Image) -> torch.Tensor:
    """Return a picture [1, 3, H, W] from -1 to 1 of an RGB image."""
    pixels = np.array(image).astype(np.float32) / 255.0
    return torch.from_numpy(pixels).permute(2, 0, 1)[None] * 2.0 - 1.0


def as_mask(image: RawImage, width: int, height: int) -> torch.Tensor:
    """Return [1, 1, height, width] of 0 and 1: 1 where the image is bright."""
    from PIL import Image

    grey = to_pillow(image).convert("L").resize((width, height), resample=Image.Resampling.LANCZOS)
    pixels = np.array(grey).astype(np.float32) / 255.0
    return torch.from_numpy((pixels >= 0.5).astype(np.float32))[None, None]
