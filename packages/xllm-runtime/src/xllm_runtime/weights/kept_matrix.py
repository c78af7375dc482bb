"""Quantised matrices of a checkpoint in the layout that GPU kernels read, and which can be had so. Knows nothing of models.

Others are made plain when they are read: groups of other sizes than multiples of 128, blocks of others than 128 x 128, GPTQ of 8 bits
or with columns in an order of their own.
"""

from __future__ import annotations

import torch

from xllm_kernels.quantised_matrix import GROUP_COLUMNS, QuantisedMatrix, from_4_bits, from_8_bits
from xllm_runtime.weights.grouped_numbers import FORMS, Pieces, grouped_numbers
from xllm_runtime.weights.quantisation import QuantisationScheme


def explain_kept(scheme: QuantisationScheme, in_features: int) -> list[str]:
    """Return every reason why matrices of `in_features` columns cannot be kept as they are stored; empty where they can."""
    reasons = []
    if in_features % GROUP_COLUMNS:
        reasons.append(f"{in_features} columns are no multiple of {GROUP_COLUMNS}")
    if scheme.block not in (None, (GROUP_COLUMNS, GROUP_COLUMNS)):
        reasons.append(f"blocks are of {scheme.block}, not of {GROUP_COLUMNS} rows and columns")
    if scheme.form in FORMS and (scheme.group_size or in_features) % GROUP_COLUMNS:
        reasons.append(f"groups of {scheme.group_size} columns are no multiple of {GROUP_COLUMNS}")
    if scheme.form == "gptq" and scheme.bits != 4:
        reasons.append(f"gptq has {scheme.bits} bits, not 4")
    if scheme.has_column_order:
        reasons.append("columns have an order of their own")
    return reasons


def kept_matrix(pieces: Pieces, scheme: QuantisationScheme) -> QuantisedMatrix:
    """Return one matrix of `pieces`, all on the device where it shall be.

    Raises ValueError, RuntimeError or IndexError where they do not fit each other, or columns have an order nobody told of.
    """
    if scheme.form in FORMS:
        return _grouped(pieces, scheme)
    weight = pieces["weight"]
    scale = pieces.get("weight_scale_inv", pieces.get("weight_scale"))
    if scale is None:
        return from_8_bits(weight)
    if scheme.block is not None:
        sizes = [-(-size // GROUP_COLUMNS) for size in weight.shape]
        return from_8_bits(weight, block_scales=scale.float().view(sizes))
    return from_8_bits(weight, row_scales=scale.float().flatten().expand(len(weight)))


def _grouped(pieces: Pieces, scheme: QuantisationScheme) -> QuantisedMatrix:
    numbers = grouped_numbers(pieces, scheme)
    columns = numbers.values.shape[1]
    size = scheme.group_size or columns
    if not torch.equal(numbers.groups, torch.arange(columns, device=numbers.groups.device) // size):
        raise ValueError("g_idx orders columns although quantization_config has no desc_act")
    repeats = size // GROUP_COLUMNS
    scales, zeros = (tensor.repeat_interleave(repeats, 1) for tensor in (numbers.scales, numbers.zeros))
    return from_4_bits(numbers.values.to(torch.uint8), scales, zeros)
