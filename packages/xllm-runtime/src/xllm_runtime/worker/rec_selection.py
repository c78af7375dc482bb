"""Chooses the worker of the rec backend: in C++ without torch, or with torch. Imports only what it chooses."""

from __future__ import annotations

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.rec.onerec_args import is_onerec
from xllm_runtime.models.native import explain_native
from xllm_runtime.platform import NULL_DEVICE, selects_cpu
from xllm_runtime.torch_extra import INSTALL_TORCH, has_torch
from xllm_runtime.worker.rec import RecWorker


def start_rec_worker(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> RecWorker:
    """Return a worker with the model loaded.

    Raises:
        InvalidConfig: the device or an option cannot be used.
        ModelLoadError: the model cannot be loaded, or no implementation serves it; names every reason.
    """
    if is_onerec(args):
        if not has_torch():
            raise UnsupportedModel(f"{files.name} needs PyTorch, which is not installed. {INSTALL_TORCH}.")
        from xllm_runtime.worker.rec_onerec import OneRecWorker

        return OneRecWorker(config, files, args)
    reasons = _explain_native(config, files, args)
    if not reasons:
        from xllm_runtime.worker.rec_native import NativeRecWorker

        return NativeRecWorker(config, files, args)
    why = ", ".join(reasons)
    if config.model.model_impl == "native" or config.model.device == NULL_DEVICE:
        raise UnsupportedModel(f"The native implementation does not search with {files.name}: {why}.")
    if not has_torch():
        raise UnsupportedModel(
            f"The native implementation does not search with {files.name} ({why}), and the other needs PyTorch, which is "
            f"not installed. {INSTALL_TORCH}."
        )
    from xllm_runtime.worker.rec_torch import TorchRecWorker

    return TorchRecWorker(config, files, args)


def _explain_native(config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> list[str]:
    if config.model.model_impl not in ("auto", "native"):
        return [f"model_impl {config.model.model_impl} is asked for"]
    if not selects_cpu(config.model.device):
        return ["it computes on the CPU only"]
    reasons = explain_native(args, config.model, files)
    if args.sliding_window and args.sliding_window_layers:
        reasons.append("beams need layers that see all keys, and some have a sliding window")
    return reasons
