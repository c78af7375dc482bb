"""Which back ends this build has, and why one cannot serve. Knows nothing of how operations compute."""

from __future__ import annotations

from importlib import import_module
from typing import TypedDict

from xllm_kernels import _C

OPERATIONS = (
    "rms_norm",
    "add_rms_norm",
    "rotary_embedding",
    "write_kv",
    "paged_attention",
    "silu_and_mul",
    "beam_attention",
    "beam_select",
    "dense_linear",
    "joint_attention",
    "modulated_norm",
    "add_gated",
    "gelu",
)
"""Names of the operations in `xllm_kernels.ops`."""
CUDA_OPERATIONS = (
    "rms_norm",
    "add_rms_norm",
    "rotary_embedding",
    "norm_and_rotate",
    "write_kv",
    "silu_and_mul",
    "argmax",
    "linear_stream",
    "decode_attention",
    "beam_join",
    "beam_scores",
    "log_normaliser",
    "top_k",
    "prompt_attention",
    "route",
    "order_pairs",
    "norm_and_route",
    "mix_experts",
    "run_experts",
    "expert_tiles",
    "combine_experts",
    "sample",
    "replace_placeholders",
    "quantised_stream",
)
"""Names of the operations in `xllm_kernels.cuda`: `ops`, `decode`, `experts`, `sampling` and others."""
HOPPER_OPERATIONS = (
    "linear_stream",
    "decode_attention",
    "mix_experts",
    "run_experts",
    "expert_tiles",
    "beam_join",
    "beam_scores",
    "log_normaliser",
    "top_k",
    "prompt_attention",
    "quantised_stream",
)
"""Those that use instructions of Hopper alone."""
HOPPER_CAPABILITY = (9, 0)
LEAST_CAPABILITY = (8, 0)
"""Compute capability from which the others run."""


class AvailableBackends(TypedDict):
    """What each back end would run with; None where it is not built in."""

    cpu: str
    """Instruction set in use: "portable", "avx2", "avx512" or "avx512_bf16"."""
    cuda: str | None
    """"sm_90a, sm_80" where the CUDA kernels are built, whether there is a GPU or not."""
    npu: str | None
    """Always None in this version."""


def available_backends() -> AvailableBackends:
    """The back ends of this build on this machine."""
    return {"cpu": _C.cpu_isa(), "cuda": None if _why_no_cuda_module() else "sm_90a, sm_80", "npu": None}


def explain(op: str, device: str) -> list[str]:
    """Why `op` cannot run on `device` ("cpu", "cuda", "npu", with or without an index): all reasons; empty if it can."""
    kind, _, index = device.partition(":")
    operations = CUDA_OPERATIONS if kind == "cuda" else OPERATIONS
    reasons = []
    if op not in operations:
        reasons.append(f"xllm-kernels has no operation {op!r} (it has {', '.join(operations)})")
    if kind == "cuda":
        missing = _why_no_cuda_module()
        reasons += [missing] if missing else _reasons_against_gpu(op, int(index or 0))
    elif kind == "npu":
        reasons.append(_C.why_no_npu() or "the NPU kernels serve no operation yet")
    elif kind != "cpu":
        reasons.append(f"xllm-kernels knows no device {device!r} (it knows cpu, cuda, npu)")
    return reasons


def _why_no_cuda_module() -> str | None:
    try:
        import_module("xllm_kernels._C_cuda")
    except ImportError as error:
        return _C.why_no_cuda() or f"the CUDA kernels cannot be loaded: {error}"
    return None


def _reasons_against_gpu(op: str, index: int) -> list[str]:
    try:
        import torch
    except ImportError:
        return ["the CUDA kernels work on tensors of torch, which is not installed"]
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return [f"torch finds no GPU {index}"]
    capability = torch.cuda.get_device_capability(index)
    found = f"GPU {index} has {capability[0]}.{capability[1]}"
    if capability < LEAST_CAPABILITY:
        return [f"the CUDA kernels need compute capability 8.0 or later, and {found}"]
    if op in HOPPER_OPERATIONS and capability != HOPPER_CAPABILITY:
        return [f"{op} needs compute capability 9.0 (H100, H200), and {found}"]
    return []
