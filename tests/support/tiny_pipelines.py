"""Tiny pipelines with random weights, made by diffusers and saved in its layout: the truth that ours is compared with."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

WORDS = [chr(code) for code in range(32, 127)]
SPECIAL = [
    "<pad>",
    "</s>",
    "<unk>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "\n",
]
VOCABULARY = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}


def tokenizer(pad: str, eos: str, max_length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single characters and a few special tokens."""
    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token=pad, eos_token=eos, model_max_length=max_length
    )
    made.add_special_tokens({"additional_special_tokens": SPECIAL[5:11]})
    return made


def clip(size: int = 16, *, is_projected: bool = False) -> Any:
    """Return a CLIP text model of one layer."""
    config = CLIPTextConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        projection_dim=size,
        bos_token_id=3,
        eos_token_id=4,
        pad_token_id=4,
    )
    return (CLIPTextModelWithProjection if is_projected else CLIPTextModel)(config).eval()


def t5(size: int = 32) -> T5EncoderModel:
    """Return a T5 encoder of one layer."""
    config = T5Config(
        vocab_size=len(VOCABULARY), d_model=size, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0
    )
    return T5EncoderModel(config).eval()


def kl_autoencoder(shift: float | None = 0.1) -> Any:
    """Return an autoencoder by which a latent of 4 channels stands for 4 x 4 pixels."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=0.7,
        shift_factor=shift,
    ).eval()


def flow_scheduler(*, is_dynamic: bool = True, **settings: Any) -> Any:
    """Return flow matching with Euler's steps."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=is_dynamic, shift=1.0 if is_dynamic else 3.0, **settings
    )


def save_flux(
    folder: Path,
    kind: str = "FluxPipeline",
    *,
    has_guidance: bool = True,
    scheduler: Any = None,
    num_layers: int = 2,
    num_single_layers: int = 2,
    heads: int = 2,
    head_size: int = 16,
) -> Path:
    """Save a FLUX.1 pipeline of this class."""
    import diffusers

    torch.manual_seed(0)
    channels = 4 * 4
    more = {"FluxPipeline": 0, "FluxControlPipeline": channels, "FluxFillPipeline": channels + 4 * 16}[kind]
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=channels + more,
        out_channels=channels,
        num_layers=num_layers,
        num_single_layers=num_single_layers,
        attention_head_dim=head_size,
        num_attention_heads=heads,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        guidance_embeds=has_guidance,
        axes_dims_rope=(head_size // 4, head_size // 4, head_size // 2),
    )
    _give_weight(transformer)
    pipeline = getattr(diffusers, kind)(
        scheduler=scheduler or flow_scheduler(),
        vae=kl_autoencoder(),
        text_encoder=clip(),
        tokenizer=tokenizer("<|endoftext|>", "<|endoftext|>", 77),
        text_encoder_2=t5(),
        tokenizer_2=tokenizer("<pad>", "</s>", 512),
        transformer=transformer,
    )
    return _saved(pipeline, folder)


def save_sd3(
    folder: Path, *, qk_norm: str | None = None, has_t5: bool = True, dual_attention_layers: tuple[int, ...] = ()
) -> Path:
    """Save a Stable Diffusion 3 pipeline, or one of 3.5 medium, whose first layers have a second attention."""
    import diffusers

    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=24,
        out_channels=4,
        pos_embed_max_size=12,
        qk_norm=qk_norm,
        dual_attention_layers=dual_attention_layers,
    )
    _give_weight(transformer)
    pipeline = diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=flow_scheduler(is_dynamic=False),
        vae=kl_autoencoder(),
        text_encoder=clip(8, is_projected=True),
        tokenizer=tokenizer("<|endoftext|>", "<|endoftext|>", 77),
        text_encoder_2=clip(16, is_projected=True),
        tokenizer_2=tokenizer("<|endoftext|>", "<|endoftext|>", 77),
        text_encoder_3=t5() if has_t5 else None,
        tokenizer_3=tokenizer("<pad>", "</s>", 512) if has_t5 else None,
    )
    return _saved(pipeline, folder)


def save_qwen_image(folder: Path, class_name: str = "QwenImagePipeline") -> Path:
    """Save a Qwen-Image pipeline, or one of Qwen-Image-Edit or Edit-Plus."""
    import diffusers

    torch.manual_seed(0)
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    _give_weight(transformer)
    autoencoder = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.1, 0.9, 1.2, 1.0],
    ).eval()
    parts: dict[str, Any] = {
        "scheduler": flow_scheduler(shift_terminal=0.02),
        "vae": autoencoder,
        "text_encoder": _qwen_vl(),
        "tokenizer": tokenizer("<pad>", "</s>", 2048),
        "transformer": transformer,
    }
    pipeline_class = getattr(diffusers, class_name)
    if class_name == "QwenImagePipeline":
        return _saved(pipeline_class(**parts), folder)
    _saved(pipeline_class(**parts, processor=None), folder)
    image_processor().save_pretrained(folder / "processor")
    _add_to_index(folder, {"processor": ["transformers", "Qwen2VLProcessor"]})
    return folder


def save_class_dit(folder: Path, scheduler: Any = None, *, out_channels: int = 4) -> Path:
    """Save a class-conditional pipeline of a thousand classes, as diffusers' guidance expects."""
    import diffusers

    torch.manual_seed(0)
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=out_channels,
        num_layers=2,
        num_embeds_ada_norm=1000,
        sample_size=8,
        patch_size=2,
    )
    _give_weight(transformer)
    pipeline = diffusers.DiTPipeline(
        transformer=transformer,
        vae=kl_autoencoder(None),
        scheduler=scheduler
        or diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=1.5),
    )
    _saved(pipeline, folder)
    _add_to_index(folder, {"id2label": {"0": "zero, nought", "7": "seven"}})
    return folder


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of random smooth colours."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def _give_weight(module: torch.nn.Module) -> None:
    """Draw every parameter anew, larger than libraries begin with, so that each of them shows in what is drawn."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(False)
        if parameter.ndim > 1:
            parameter.normal_(0, 1.2 / parameter[0].numel() ** 0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.1, generator=generator)
        else:
            parameter.normal_(1, 0.2, generator=generator)


def _saved(pipeline: Any, folder: Path) -> Path:
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


def _add_to_index(folder: Path, entries: dict[str, Any]) -> None:
    """Write what diffusers does not save, as published folders have it."""
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@functools.cache
def _qwen_vl() -> Qwen2_5_VLForConditionalGeneration:
    text = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1000000.0},
        "pad_token_id": 0,
        "bos_token_id": 3,
        "eos_token_id": 1,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 56,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=VOCABULARY["<|image_pad|>"],
        video_token_id=VOCABULARY["<|video_pad|>"],
        vision_start_token_id=VOCABULARY["<|vision_start|>"],
        vision_end_token_id=VOCABULARY["<|vision_end|>"],
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


class ImageAndText:
    """What Qwen's processor does with images, without the video half of it, which needs torchvision."""

    def __init__(self, text_tokenizer: Any) -> None:
        self._tokenizer = text_tokenizer

    def __call__(self, *, text: list[str], images: Any, padding: bool, return_tensors: str) -> Any:
        """Return input ids with a place for each piece of the images, and the images' pixels."""
        inputs = image_processor()(images=images if isinstance(images, list) else [images], return_tensors="pt")
        whole = []
        for line in text:
            first, *parts = line.split("<|image_pad|>")
            for grid, part in zip(inputs["image_grid_thw"], parts, strict=True):
                first += "<|image_pad|>" * (int(grid.prod()) // 4) + part
            whole.append(first)
        inputs.update(self._tokenizer(whole, padding=padding, return_tensors=return_tensors))
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == VOCABULARY["<|image_pad|>"]).int()
        return inputs


def image_processor() -> Any:
    """Return Qwen2-VL's image processor, for images of few patches."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)
