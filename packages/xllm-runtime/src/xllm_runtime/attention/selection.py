"""Which attention backend serves a layer. Knows the backends' names only; each is imported when it is considered."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_runtime.attention.backend import AttentionBackend, AttentionSpec

BACKENDS = {
    "paged_cpu": "xllm_runtime.attention.paged_cpu:PagedCPUAttention",
    "paged_cuda": "xllm_runtime.attention.paged_cuda:PagedCUDAAttention",
    "paged_triton": "xllm_runtime.attention.paged_triton:PagedTritonAttention",
    "sdpa": "xllm_runtime.attention.sdpa:SDPAAttention",
}
"""Fastest first; the last serves everything."""


def select_attention(spec: AttentionSpec, name: str = "auto") -> AttentionBackend:
    """Return a backend for layers like `spec`: the named one, or with "auto" the first that fits.

    Raises `InvalidConfig` for an unknown name and `UnsupportedModel`, with every reason, when none fits.
    """
    if name != "auto" and name not in BACKENDS:
        raise InvalidConfig(f"attention backend {name!r} is unknown; choose auto, {', '.join(BACKENDS)}")
    reasons = []
    for candidate in BACKENDS if name == "auto" else (name,):
        backend = _load(BACKENDS[candidate])
        found = backend.explain(spec)
        if not found:
            return backend(spec)
        reasons += [f"{candidate} {reason}" for reason in found]
    raise UnsupportedModel(f"no attention backend fits: {'; '.join(reasons)}")


def _load(path: str) -> type[AttentionBackend]:
    module, _, attribute = path.partition(":")
    return cast("type[AttentionBackend]", getattr(import_module(module), attribute))
