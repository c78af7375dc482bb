"""Attention over paged KV: one protocol, several backends, and the choice between them. Knows nothing of models."""

from xllm_runtime.attention.backend import AttendsLastRows, AttentionBackend, AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows
from xllm_runtime.attention.selection import select_attention

__all__ = [
    "AttendsLastRows",
    "AttentionBackend",
    "AttentionMetadata",
    "AttentionSpec",
    "LastRows",
    "select_attention",
]
