"""The 4- and 8-bit integers of AWQ, GPTQ and packed checkpoints, unpacked from their words. Knows nothing of what becomes of them.

Pieces are tensors by the last part of their names, all on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from xllm_runtime.weights.quantisation import QuantisationScheme

Pieces = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of eight that nibble i of a word holds."""


@dataclass(frozen=True, slots=True)
class GroupedNumbers:
    """A matrix [n, k] as (value - zero point) x scale, both of the value's group of columns."""

    values: torch.Tensor
    """int32 [n, k]"""
    zeros: torch.Tensor
    """int32 [n, groups]"""
    scales: torch.Tensor
    """float32 [n, groups]"""
    groups: torch.Tensor
    """int64 [k], rising unless the checkpoint orders columns otherwise."""

    def plain(self) -> torch.Tensor:
        """Return the matrix in float32."""
        return (self.values - self.zeros[:, self.groups]).float() * self.scales[:, self.groups]


def grouped_numbers(pieces: Pieces, scheme: QuantisationScheme) -> GroupedNumbers:
    """Return the numbers of one matrix. Raises RuntimeError or IndexError where pieces do not fit each other."""
    return FORMS[scheme.form](pieces, scheme)


def _packed(pieces: Pieces, scheme: QuantisationScheme) -> GroupedNumbers:
    """4-bit integers around 8, eight columns a word."""
    rows, columns = (int(size) for size in pieces["weight_shape"].tolist())
    values = unpack_words(pieces["weight_packed"], 4).flatten(1)[:, :columns]
    scales = pieces["weight_scale"].float().view(rows, -1)
    zeros = torch.full(scales.shape, 8, dtype=torch.int32, device=scales.device)
    return GroupedNumbers(values, zeros, scales, _in_order(columns, scheme, values.device))


def _awq(pieces: Pieces, scheme: QuantisationScheme) -> GroupedNumbers:
    order = torch.tensor(AWQ_ORDER).argsort().to(pieces["qweight"].device)
    values, zeros = (unpack_words(pieces[name], 4)[..., order].flatten(1).t() for name in ("qweight", "qzeros"))
    return GroupedNumbers(
        values, zeros, pieces["scales"].float().t(), _in_order(values.shape[1], scheme, values.device)
    )


def _gptq(pieces: Pieces, scheme: QuantisationScheme) -> GroupedNumbers:
    values = unpack_words(pieces["qweight"], scheme.bits).transpose(1, 2).flatten(0, 1).t()
    zeros = unpack_words(pieces["qzeros"], scheme.bits).flatten(1).t() + scheme.zero_offset
    groups = pieces.get("g_idx")
    groups = _in_order(values.shape[1], scheme, values.device) if groups is None else groups.long()
    return GroupedNumbers(values, zeros, pieces["scales"].float().t(), groups)


def _in_order(columns: int, scheme: QuantisationScheme, device: torch.device) -> torch.Tensor:
    return torch.arange(columns, device=device) // (scheme.group_size or columns)


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., N] -> int32 [..., N, 32 / bits]: the unsigned fields of every word, the lowest first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


FORMS: dict[str, Callable[[Pieces, QuantisationScheme], GroupedNumbers]] = {
    "packed": _packed,
    "awq": _awq,
    "gptq": _gptq,
}
"""Forms of integers in groups."""
