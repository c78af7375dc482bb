"""Trains the digits model of this folder: an autoencoder, then a class-conditional diffusion transformer,
a GPU's minute or an hour of one CPU core.

    uv run --group dit-digits python examples/dit_digits/train.py --output examples/dit_digits/model

The data are scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, scaled up to 32 x 32. What is written is a folder as
diffusers' `DiTPipeline` has it: `model_index.json` names the classes, so that their names are the prompts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DiTTransformer2DModel, UniPCMultistepScheduler
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

IMAGE_SIZE = 32
CLASS_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_images(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [1797, 3, 32, 32] from -1 to 1, and their digits [1797]."""
    digits = load_digits()
    small = torch.from_numpy(digits.images.astype(np.float32))[:, None] / 16.0
    large = F.interpolate(small, (IMAGE_SIZE, IMAGE_SIZE), mode="bicubic", align_corners=False).clamp(0.0, 1.0)
    return (large * 2.0 - 1.0).expand(-1, 3, -1, -1).to(device), torch.from_numpy(digits.target).long().to(device)


def train_autoencoder(images: torch.Tensor, num_steps: int, batch_size: int = 64) -> AutoencoderKL:
    """Return an autoencoder to latents [4, 8, 8] whose `scaling_factor` gives them unit variance."""
    autoencoder = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=IMAGE_SIZE,
    ).to(images.device)
    optimizer = torch.optim.AdamW(autoencoder.parameters(), 2e-3, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, num_steps)
    for step in range(num_steps):
        batch = images[torch.randint(len(images), (batch_size,), device=images.device)]
        posterior = autoencoder.encode(batch).latent_dist
        restored = autoencoder.decode(posterior.sample()).sample
        error = F.l1_loss(restored, batch) + F.mse_loss(restored, batch)
        loss = error + 1e-4 * posterior.kl().mean() / batch[0].numel() * 48
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"autoencoder step {step}: error {error.item():.4f}", flush=True)
    autoencoder.eval().requires_grad_(False)
    autoencoder.register_to_config(scaling_factor=1.0 / float(_latents(autoencoder, images).std()))
    return autoencoder


def _latents(autoencoder: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([autoencoder.encode(part).latent_dist.mean for part in images.split(256)])


def train_transformer(
    latents: torch.Tensor, digits: torch.Tensor, num_steps: int, batch_size: int = 128
) -> DiTTransformer2DModel:
    """Return a transformer that predicts the velocity from data to noise, averaged over the steps of its training."""
    transformer = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        num_embeds_ada_norm=len(CLASS_NAMES),
        sample_size=latents.shape[-1],
        patch_size=2,
    ).to(latents.device)
    average = AveragedModel(transformer, multi_avg_fn=get_ema_multi_avg_fn(0.998))
    optimizer = torch.optim.AdamW(transformer.parameters(), 1.5e-3, weight_decay=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, num_steps, pct_start=0.1)
    for step in range(num_steps):
        chosen = torch.randint(len(latents), (batch_size,), device=latents.device)
        clean = latents[chosen]
        noise = torch.randn_like(clean)
        sigma = torch.sigmoid(torch.randn(batch_size, device=latents.device))
        noisy = torch.lerp(clean, noise, sigma[:, None, None, None])
        velocity = transformer(noisy, (sigma * 1000.0).long(), digits[chosen]).sample
        loss = F.mse_loss(velocity, noise - clean)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(transformer)
        if step % 200 == 0:
            print(f"transformer step {step}: loss {loss.item():.4f}", flush=True)
    return average.module.eval().requires_grad_(False)


def save(folder: Path, autoencoder: AutoencoderKL, transformer: DiTTransformer2DModel) -> None:
    """Write the folder, weights in float16."""
    autoencoder.half().cpu().save_pretrained(folder / "vae")
    transformer.half().cpu().save_pretrained(folder / "transformer")
    UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=1.0, num_train_timesteps=1000
    ).save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "DiTPipeline",
        "_diffusers_version": "0.42.1",
        "id2label": {str(number): f"{name}, {number}" for number, name in enumerate(CLASS_NAMES)},
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "transformer": ["diffusers", "DiTTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def main() -> None:
    """Train both models and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--autoencoder-steps", type=int, default=1400)
    parser.add_argument("--transformer-steps", type=int, default=2500)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    began_s = time.monotonic()
    images, digits = load_images(arguments.device)
    autoencoder = train_autoencoder(images, arguments.autoencoder_steps)
    latents = _latents(autoencoder, images) * autoencoder.config.scaling_factor
    transformer = train_transformer(latents, digits, arguments.transformer_steps)
    save(arguments.output, autoencoder, transformer)
    print(f"Written to {arguments.output} after {time.monotonic() - began_s:.0f} s.")


if __name__ == "__main__":
    main()
