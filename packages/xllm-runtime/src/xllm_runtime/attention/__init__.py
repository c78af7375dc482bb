"""Attention over paged KV: one protocol, several backends, and the choice between them. Knows nothing of models."""

from xllm_runtime.attention.backend import AttentionBackend, AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.attention.selection import select_attention

__all__ = ["AttentionBackend", "AttentionMetadata", "AttentionSpec", "select_attention"]
