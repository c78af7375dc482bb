"""Chooses the worker: computing nothing, in C++ without torch, or with torch. Imports only what it chooses."""

from __future__ import annotations

import logging

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.backend import choose_backend
from xllm_runtime.models.native import explain_native, native_language_args
from xllm_runtime.platform import NULL_DEVICE, selects_cpu
from xllm_runtime.processors.media_processor import is_left_to_transformers
from xllm_runtime.torch_extra import INSTALL_TORCH, has_torch
from xllm_runtime.worker.client import Worker
from xllm_runtime.worker.null import NullWorker

logger = logging.getLogger(__name__)


def start_worker(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> Worker:
    """Return a worker with the model loaded.

    Raises:
        InvalidConfig: the device or an option cannot be used.
        ModelLoadError: the model cannot be loaded, or no implementation serves it; names every reason.
    """
    if config.model.device == NULL_DEVICE:
        return NullWorker(config, args)
    if choose_backend(config.model, files) == "vlm":
        return _start_vlm_worker(config, files, args)
    reasons = _explain_native(config, files, args)
    if not reasons:
        from xllm_runtime.worker.native import NativeWorker

        return NativeWorker(config, files, args)
    why = ", ".join(reasons)
    if config.model.model_impl == "native":
        raise UnsupportedModel(f"The native implementation does not serve {files.name}: {why}.")
    if not has_torch():
        raise UnsupportedModel(
            f"The native implementation does not serve {files.name} ({why}), and the others need PyTorch, which is not "
            f"installed. {INSTALL_TORCH}."
        )
    logger.debug("The native implementation is not taken: %s.", why)
    from xllm_runtime.worker.llm import LLMWorker

    return LLMWorker(config, files, args)


def _start_vlm_worker(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> Worker:
    if not has_torch():
        raise UnsupportedModel(f"Serving images needs PyTorch, which is not installed. {INSTALL_TORCH}.")
    if config.model.task == "mm_embed":
        from xllm_runtime.worker.tower import TowerWorker

        return TowerWorker(config, files, args)
    if is_left_to_transformers(config.model, args.architecture):
        from xllm_runtime.worker.transformers_vlm import TransformersVLMWorker

        return TransformersVLMWorker(config, files, args)
    reasons = _explain_native_vlm(config, files, args)
    if not reasons:
        from xllm_runtime.worker.native_vlm import NativeVLMWorker

        return NativeVLMWorker(config, files, args)
    if config.model.model_impl == "native":
        raise UnsupportedModel(f"The native implementation does not serve {files.name}: {', '.join(reasons)}.")
    logger.debug("The native implementation is not taken: %s.", ", ".join(reasons))
    from xllm_runtime.worker.vlm import VLMWorker

    return VLMWorker(config, files, args)


def _explain_native_vlm(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> list[str]:
    language = native_language_args(args)
    if language is None:
        return [f"it does not know the language part of {args.architecture}"]
    return _explain_native(config, files, language)


def _explain_native(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> list[str]:
    if config.kv_cache.kv_cache_dtype != "auto":
        return [f"it keeps no KV in {config.kv_cache.kv_cache_dtype}"]
    if config.model.model_impl not in ("auto", "native"):
        return [f"model_impl {config.model.model_impl} is asked for"]
    if not selects_cpu(config.model.device):
        return ["it computes on the CPU only"]
    return explain_native(args, config.model, files)
