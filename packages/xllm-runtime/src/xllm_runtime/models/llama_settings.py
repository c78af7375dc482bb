"""Which settings the Llama family's implementations know. Knows nothing of how they are computed, and imports no torch."""

from __future__ import annotations

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.rope_frequencies import KINDS as ROPE_KINDS
from xllm_runtime.weights.quantisation import explain_quantisation


def explain_llama(args: ModelArgs, *, may_rotate_parts: bool = False) -> list[str]:
    """Return every reason why a model of these arguments cannot be computed as one of the family.

    `may_rotate_parts`: only the first numbers of a head may be rotated.
    """
    reasons = []
    if args.activation not in ("silu", "swish"):
        reasons.append(f"activation {args.activation!r} is not silu")
    if args.rope_scaling.kind not in ROPE_KINDS:
        reasons.append(f"rope type {args.rope_scaling.kind!r} is unknown")
    if args.head_dim % 2 or (args.partial_rotary_factor != 1.0 and not may_rotate_parts):
        reasons.append("not every number of a head is rotated")
    reasons += explain_quantisation(args)
    if args.raw.get("is_causal") is False:
        reasons.append("its tokens attend to later ones")
    return reasons
