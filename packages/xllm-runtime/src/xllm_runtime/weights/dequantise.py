"""Turns a quantised checkpoint into plain matrices while it is read, so that every model can load it. Knows nothing of models.

Layers that compute with quantised matrices get the pieces as they are.

A matrix is [rows, columns]; its pieces may come in any order, and are dropped once it is made. Computes in float32, rounds once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import torch

from xllm_framework.errors import ModelLoadError
from xllm_runtime.weights.grouped_numbers import FORMS, Pieces, grouped_numbers
from xllm_runtime.weights.quantisation import QuantisationScheme

OPTIONAL_PIECES = frozenset({"g_idx"})
DROPPED_PIECES = frozenset({"input_scale", "weight_zero_point", "k_scale", "v_scale"})
"""For inputs that are quantised with fixed scales, of symmetric weights, and of a quantised cache: left out unless they are `kept`."""
QUANTISED_DTYPES = (torch.float8_e4m3fn, torch.int8)


def dequantised(
    weights: Iterable[tuple[str, torch.Tensor]],
    scheme: QuantisationScheme,
    dtype: torch.dtype,
    kept: Container[str] = (),
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights` with every quantised matrix as `<layer>.weight` in `dtype`, but those of `kept` layers as their pieces.

    Raises `ModelLoadError` naming a layer whose pieces are incomplete or do not fit.
    """
    waiting: dict[str, Pieces] = {}
    required = scheme.pieces - OPTIONAL_PIECES
    for name, tensor in weights:
        layer, _, piece = name.rpartition(".")
        if piece in DROPPED_PIECES and layer and name not in kept:
            continue
        if piece not in scheme.pieces or (piece == "weight" and tensor.dtype not in QUANTISED_DTYPES):
            yield name, tensor
            continue
        pieces = waiting.setdefault(layer, {})
        pieces[piece] = tensor
        is_ordered = scheme.form == "gptq" and "g_idx" not in pieces
        if required <= pieces.keys() and not is_ordered:
            yield from _made(layer, waiting.pop(layer), scheme, dtype, is_kept=layer in kept)
    for layer, pieces in waiting.items():  # gptq without g_idx, or something is missing
        missing = sorted(required - pieces.keys())
        if missing:
            raise ModelLoadError(f"layer {layer!r} of the checkpoint has no tensor {missing[0]!r}")
        yield from _made(layer, pieces, scheme, dtype, is_kept=layer in kept)


def _made(
    layer: str, pieces: Pieces, scheme: QuantisationScheme, dtype: torch.dtype, *, is_kept: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    if is_kept:
        for piece in sorted(pieces, key=lambda piece: piece not in OPTIONAL_PIECES):
            yield f"{layer}.{piece}", pieces[piece]
    else:
        yield f"{layer}.weight", _matrix(layer, pieces, scheme, dtype)


def _matrix(layer: str, pieces: Pieces, scheme: QuantisationScheme, dtype: torch.dtype) -> torch.Tensor:
    try:
        plain = _scaled(pieces, scheme) if scheme.form not in FORMS else grouped_numbers(pieces, scheme).plain()
        return plain.to(dtype)
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
