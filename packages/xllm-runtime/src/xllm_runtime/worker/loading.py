"""Builds a model on its device and fills it with weights. Knows nothing of KV caches or of steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from xllm_framework.config import LoadConfig, ModelConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.models.interface import CausalLM, KeepsQuantised
from xllm_runtime.models.registry import ModelChoice
from xllm_runtime.platform import Platform
from xllm_runtime.weights import load_weights
from xllm_runtime.weights.dummy import fill_dummy_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

KV_DTYPES = {"auto": None, "fp8": torch.float8_e4m3fn}
"""Values of the option `kv_cache_dtype`; None is the model's own type."""

logger = logging.getLogger(__name__)


def select_dtype(config: ModelConfig, args: ModelArgs, platform: Platform) -> torch.dtype:
    """Return the type of weights and activations: the option's, or what suits the platform for the checkpoint's."""
    return dtype_for(config, DTYPES.get(args.dtype, torch.float32), platform)


def dtype_for(config: ModelConfig, stored: torch.dtype, platform: Platform) -> torch.dtype:
    """Return what `select_dtype` returns, for weights of this type."""
    return platform.default_dtype(stored) if config.dtype == "auto" else DTYPES[config.dtype]


def load_model(
    choice: ModelChoice, files: ModelFiles, args: ModelArgs, load: LoadConfig, dtype: torch.dtype, device: torch.device
) -> CausalLM:
    """Build the chosen model on `device` and load the checkpoint, or random weights for `load_format` dummy.

    Parameters are allocated once, uninitialised, and each tensor of the checkpoint is dropped once it is taken.

    Raises:
        ModelLoadError: a tensor is missing or has a wrong shape, a file is broken, or memory does not suffice.
    """
    start_s = time.monotonic()
    with _memory_errors_named(files):
        with torch.device(device):
            model = choice.build(args, dtype)
        if load.load_format == "dummy" and isinstance(model, nn.Module):
            fill_dummy_weights(model)
        else:
            kept = model.kept_layers() if isinstance(model, KeepsQuantised) else frozenset()
            model.load_weights(load_weights(files, args, dtype, load, kept, device))
    if isinstance(model, nn.Module):
        model.eval().requires_grad_(False)
    logger.info("Loaded %s (%s) in %.1f s.", files.name, choice.model_impl, time.monotonic() - start_s)
    return model


@contextmanager
def _memory_errors_named(files: ModelFiles) -> Iterator[None]:
    """Turn every out-of-memory error into one that names the model."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelLoadError(f"The device has too little memory for the weights of {files.name}.") from error
    except RuntimeError as error:  # which is what torch's CPU allocator raises
        if "can't allocate memory" not in str(error):
            raise
        raise ModelLoadError(f"There is too little memory for the weights of {files.name}.") from error
