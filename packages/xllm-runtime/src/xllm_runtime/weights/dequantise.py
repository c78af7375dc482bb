"""Turns a quantised checkpoint into plain matrices while it is read, so that every model can load it. Knows nothing of models.

A matrix is [rows, columns]; its pieces may come in any order, and are dropped once it is made. Computes in float32, rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from xllm_framework.errors import ModelLoadError
from xllm_runtime.weights.quantisation import QuantisationScheme

Pieces = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of eight that nibble i of a word holds."""
OPTIONAL_PIECES = frozenset({"g_idx"})
DROPPED_PIECES = frozenset({"input_scale", "weight_zero_point", "k_scale", "v_scale"})
"""For inputs that are quantised with fixed scales, of symmetric weights, and of a quantised cache: not needed here."""
QUANTISED_DTYPES = (torch.float8_e4m3fn, torch.int8)


def dequantised(
    weights: Iterable[tuple[str, torch.Tensor]], scheme: QuantisationScheme, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights` with every quantised matrix as `<layer>.weight` in `dtype`.

    Raises `ModelLoadError` naming a layer whose pieces are incomplete or do not fit.
    """
    waiting: dict[str, Pieces] = {}
    required = scheme.pieces - OPTIONAL_PIECES
    for name, tensor in weights:
        layer, _, piece = name.rpartition(".")
        if piece in DROPPED_PIECES and layer:
            continue
        if piece not in scheme.pieces or (piece == "weight" and tensor.dtype not in QUANTISED_DTYPES):
            yield name, tensor
            continue
        pieces = waiting.setdefault(layer, {})
        pieces[piece] = tensor
        is_ordered = scheme.form == "gptq" and "g_idx" not in pieces
        if required <= pieces.keys() and not is_ordered:
            yield f"{layer}.weight", _matrix(layer, waiting.pop(layer), scheme, dtype)
    for layer, pieces in waiting.items():  # gptq without g_idx, or something is missing
        missing = sorted(required - pieces.keys())
        if missing:
            raise ModelLoadError(f"layer {layer!r} of the checkpoint has no tensor {missing[0]!r}")
        yield f"{layer}.weight", _matrix(layer, pieces, scheme, dtype)


def _matrix(layer: str, pieces: Pieces, scheme: QuantisationScheme, dtype: torch.dtype) -> torch.Tensor:
    try:
        return _FORMS[scheme.form](pieces, scheme).to(dtype)
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in pieces.items())
        raise ModelLoadError(f"the tensors of layer {layer!r} do not fit each other: {shapes}") from error


def _scaled(pieces: Pieces, scheme: QuantisationScheme) -> torch.Tensor:
    """8-bit floats or integers times the scale of their tensor, row or block."""
    weight = pieces["weight"].float()
    scale = pieces.get("weight_scale_inv", pieces.get("weight_scale", torch.ones(1))).float()
    if scheme.block is not None:
        rows, columns = scheme.block
        grid = scale.repeat_interleave(rows, 0)[: weight.shape[0]]
        return weight * grid.repeat_interleave(columns, 1)[:, : weight.shape[1]]
    if scale.numel() == 1:
        return weight * scale.flatten()
    return weight * scale.view(weight.shape[0], 1)


def _packed(pieces: Pieces, scheme: QuantisationScheme) -> torch.Tensor:
    """4-bit integers around 8, eight columns a word."""
    rows, columns = (int(size) for size in pieces["weight_shape"].tolist())
    values = (unpack_words(pieces["weight_packed"], 4).flatten(1)[:, :columns] - 8).float()
    scales = pieces["weight_scale"].float().view(rows, -1)
    return values * scales.repeat_interleave(scheme.group_size or columns, 1)[:, :columns]


def _awq(pieces: Pieces, scheme: QuantisationScheme) -> torch.Tensor:
    order = torch.tensor(AWQ_ORDER).argsort()
    values, zeros = (unpack_words(pieces[name], 4)[..., order].flatten(1) for name in ("qweight", "qzeros"))
    groups = torch.arange(len(values)) // (scheme.group_size or len(values))
    return ((values - zeros[groups]).float() * pieces["scales"].float()[groups]).t().contiguous()


def _gptq(pieces: Pieces, scheme: QuantisationScheme) -> torch.Tensor:
    values = unpack_words(pieces["qweight"], scheme.bits).transpose(1, 2).flatten(0, 1)  # [columns, rows]
    zeros = unpack_words(pieces["qzeros"], scheme.bits).flatten(1) + scheme.zero_offset
    groups = pieces.get("g_idx")
    if groups is None:
        groups = torch.arange(len(values)) // (scheme.group_size or len(values))
    groups = groups.long()
    return ((values - zeros[groups]).float() * pieces["scales"].float()[groups]).t().contiguous()


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., N] -> int32 [..., N, 32 / bits]: the unsigned fields of every word, the lowest first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


_FORMS: dict[str, Callable[[Pieces, QuantisationScheme], torch.Tensor]] = {
    "float8": _scaled,
    "int8": _scaled,
    "packed": _packed,
    "awq": _awq,
    "gptq": _gptq,
}
