"""Fills a C++ decoder with a checkpoint's weights, or random ones. Knows nothing of KV caches or of steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_kernels.native import LlamaDecoder
from xllm_runtime.models.native import decoder_shape, rotary_table, weight_format
from xllm_runtime.weights.packed_copy import PackedCopy
from xllm_runtime.weights.raw_dummy import dummy_raw_weights
from xllm_runtime.weights.raw_reading import raw_weights
from xllm_runtime.weights.raw_tensor import RawTensor

IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies."""

logger = logging.getLogger(__name__)


Rename = Callable[[str], str | None]
"""A tensor's name in the checkpoint -> what the decoder calls it; None for one that it does not take."""


def load_decoder(
    config: XLLMConfig, files: ModelFiles, args: ModelArgs, num_positions: int, rename: Rename = str
) -> LlamaDecoder:
    """Return the decoder of a model that `models.native` serves, for positions below `num_positions`.

    Raises:
        ModelLoadError: a tensor is missing, unknown or has a wrong shape or type, a file is broken, or memory ends.
    """
    start_s = time.monotonic()
    try:
        form = weight_format(args, config.model, files)
        decoder = LlamaDecoder(decoder_shape(args), rotary_table(args, num_positions), form)
        if config.load.load_format == "dummy":
            _fill(decoder, dummy_raw_weights(args))
        else:
            _load(decoder, files, args, PackedCopy(files, form, config.load.cache_dir), rename)
    except ValueError as error:
        raise ModelLoadError(f"{files.path}: {error}.") from error
    except MemoryError as error:
        raise ModelLoadError(f"There is too little memory for the weights of {files.name}.") from error
    logger.info(
        "Loaded %s (native, %.0f MB of weights) in %.2f s.",
        files.name,
        decoder.num_weight_bytes / 1e6,
        time.monotonic() - start_s,
    )
    return decoder


def _load(decoder: LlamaDecoder, files: ModelFiles, args: ModelArgs, copy: PackedCopy, rename: Rename) -> None:
    """Take the packed copy of an earlier start, or pack the checkpoint and leave a copy for the next one."""
    if not copy.load(decoder):
        named = ((rename(tensor.name), tensor) for tensor in raw_weights(files, args))
        _fill(decoder, (replace(tensor, name=name) for name, tensor in named if name is not None))
        copy.save(decoder)


def _fill(decoder: LlamaDecoder, weights: Iterable[RawTensor]) -> None:
    for tensor in weights:
        if not tensor.name.endswith(IGNORED_SUFFIX):
            decoder.set_weight(tensor.name, tensor.raw, tensor.kind, tensor.shape, permuted_heads=tensor.permuted_heads)
    decoder.finish()
