"""Numbers that every sampler's filters share. Knows nothing of tensors or arrays."""

from __future__ import annotations

FIRST_WIDTH = 64
"""Best tokens that a row with top-k or top-p is looked at first; they settle most rows."""
SECOND_WIDTH = 1024
"""For rows whose filter reaches further; the whole vocabulary comes last."""
MASS_ROUNDING = 1e-6
"""Probabilities come from float32 logits; a set whose mass misses top_p by less than this reaches it."""
