"""Which back ends this build has, and why one cannot serve. Knows nothing of how operations compute."""

from __future__ import annotations

from typing import TypedDict

from xllm_kernels import _C

OPERATIONS = ("rms_norm", "add_rms_norm", "rotary_embedding", "write_kv", "paged_attention", "silu_and_mul")
"""Names of the operations in `xllm_kernels.ops`."""


class AvailableBackends(TypedDict):
    """What each back end would run with; None where it is not built in."""

    cpu: str
    """Instruction set in use: "portable", "avx2", "avx512" or "avx512_bf16"."""
    cuda: str | None
    """Always None in this version."""
    npu: str | None
    """Always None in this version."""


def available_backends() -> AvailableBackends:
    """The back ends of this build on this machine."""
    return {"cpu": _C.cpu_isa(), "cuda": None, "npu": None}


def explain(op: str, device: str) -> list[str]:
    """Why `op` cannot run on `device` ("cpu", "cuda", "npu", with or without an index): all reasons; empty if it can."""
    reasons = []
    if op not in OPERATIONS:
        reasons.append(f"xllm-kernels has no operation {op!r} (it has {', '.join(OPERATIONS)})")
    kind = device.partition(":")[0]
    if kind == "cuda":
        reasons.append(_C.why_no_cuda() or "the CUDA kernels serve no operation yet")
    elif kind == "npu":
        reasons.append(_C.why_no_npu() or "the NPU kernels serve no operation yet")
    elif kind != "cpu":
        reasons.append(f"xllm-kernels knows no device {device!r} (it knows cpu, cuda, npu)")
    return reasons
