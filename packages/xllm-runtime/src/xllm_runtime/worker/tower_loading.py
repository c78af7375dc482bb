"""Builds the vision tower of a model alone and fills it with weights. Knows nothing of language models or of steps."""

from __future__ import annotations

import torch
from torch import nn

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.layers.packed_linear import pack_products
from xllm_runtime.models.registry import model_class
from xllm_runtime.models.vlm.interface import MediaTower
from xllm_runtime.models.vlm.qwen_tower import QwenVisionBlock
from xllm_runtime.weights import load_weights
from xllm_runtime.weights.dummy import fill_dummy_weights


def load_tower(
    config: XLLMConfig, files: ModelFiles, args: ModelArgs, dtype: torch.dtype, device: torch.device
) -> MediaTower:
    """Return the tower of a model whose class is in the registry, on `device`, with the checkpoint's weights.

    Raises:
        UnsupportedModel: the class cannot compute a model of these arguments; names every reason.
        ModelLoadError: a tensor is missing or has a wrong shape, or a file is broken.
    """
    model = model_class(args.architecture)
    reasons = model.explain(args)
    if reasons:
        raise UnsupportedModel(f"The vision tower of {files.name} cannot be computed: {', '.join(reasons)}.")
    with torch.device(device):
        tower: MediaTower = model.build_media_tower(args, dtype)
    if config.load.load_format == "dummy" and isinstance(tower, nn.Module):
        fill_dummy_weights(tower)
    else:
        tower.load_weights(load_weights(files, args, dtype, config.load, wanted=tower.owns_weight))
    if isinstance(tower, nn.Module):
        tower.eval().requires_grad_(False)
        pack_blocks(tower)
    return tower


def pack_blocks(tower: nn.Module) -> None:
    """Let the products of blocks be the CPU's kernels' where those take them; weights must be loaded."""
    for module in list(tower.modules()):
        if isinstance(module, QwenVisionBlock):
            pack_products(module, in_workspace=True)
