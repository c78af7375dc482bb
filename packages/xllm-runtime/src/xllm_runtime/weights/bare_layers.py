"""Names of tensors in checkpoints of bare layers, as embedding models are saved. Knows nothing of files or of tensors."""

from __future__ import annotations

from xllm_framework.model import ModelArgs

PREFIX = "model."
_FIRST_PARTS = ("embed_tokens.", "layers.", "norm.")


def full_name(name: str, args: ModelArgs) -> str:
    """Return the name that a tensor has in a whole model's checkpoint: bare layers are saved without their prefix."""
    return PREFIX + name if args.head != "language" and name.startswith(_FIRST_PARTS) else name
