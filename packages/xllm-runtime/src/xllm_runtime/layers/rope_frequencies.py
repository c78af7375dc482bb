"""Angles per position of every kind of rotary scaling, in float32 and operation by operation as transformers has them.

With numpy, so that the same arithmetic serves models with and without torch.

The angle of a position depends on that position alone, never on the length of a sequence or batch: cached keys stay
valid, and neighbours cannot change a result. Two kinds are defined by the length of the sequence instead, `dynamic` and
`longrope`; for those the row of position p is the one that a sequence of length p + 1 uses, which is what transformers
computes when it decodes token by token.

Knows nothing of layers, caches or kernels. Sources: RoPE (Su et al., 2021), position interpolation (Chen et al., 2023),
NTK scaling (bloc97, emozilla), YaRN (Peng et al., 2023), LongRoPE (Ding et al., 2024), Llama 3.1's reference code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def rotary_dim(args: ModelArgs) -> int:
    """Return how many of a head's numbers are rotated."""
    return int(args.head_dim * args.partial_rotary_factor)


def max_rotary_position(args: ModelArgs) -> int:
    """Return the number of positions that the scaling is made for: the context, times the factor of those that stretch it."""
    parameters = args.rope_scaling.parameters
    factor = float(parameters.get("factor") or 1.0)
    context = args.max_position_embeddings
    if args.rope_scaling.kind in ("linear", "dynamic"):
        return math.ceil(context * max(factor, 1.0))
    if args.rope_scaling.kind == "yarn":
        return max(context, math.ceil(int(parameters["original_max_position_embeddings"]) * factor))
    return context


def cos_sin_table(args: ModelArgs, num_positions: int) -> Floats:
    """Return [num_positions, rotary_dim]: the cosines of each position's angles, then their sines, times their factor."""
    angles, factor = rotary_angles(args, np.arange(num_positions, dtype=np.int64))
    table: Floats = np.concatenate((np.cos(angles), np.sin(angles)), -1)
    return table if factor == 1.0 else table * np.float32(factor)


def rotary_angles(args: ModelArgs, positions: Positions) -> tuple[Floats, float]:
    """Return (angles [P, rotary_dim / 2] of `positions` [P], the factor of cosines and sines).

    Raises `UnsupportedModel` for a kind, or a setting of one, that is not known.
    """
    kind, parameters = args.rope_scaling.kind, args.rope_scaling.parameters
    if kind not in KINDS:
        raise UnsupportedModel(f"rope type {kind!r} is not one of {', '.join(KINDS)}")
    try:
        return _ANGLES[kind](args, parameters, positions)
    except KeyError as error:
        raise UnsupportedModel(f"rope type {kind!r} needs the parameter {error.args[0]!r} in config.json") from error


def _wavelengths(args: ModelArgs) -> Floats:
    """Return how many positions each pair of numbers takes for one radian."""
    return _powers(np.float32(args.rope_theta), args)


def _powers(base: np.float32 | Floats, args: ModelArgs) -> Floats:
    """Return `base` to the powers 0, 2 / dim, 4 / dim and so on below 1."""
    dim = rotary_dim(args)
    powers: Floats = np.power(base, np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    return powers


def _frequencies(args: ModelArgs) -> Floats:
    return 1.0 / _wavelengths(args)


def _outer(positions: Positions, frequencies: Floats) -> Floats:
    return positions[:, None].astype(np.float32) * frequencies


def _default(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    return _outer(positions, _frequencies(args)), 1.0


def _linear(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    return _outer(positions, _frequencies(args) / np.float32(parameters["factor"])), 1.0


def _dynamic(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    """Raise the base with the length, past the trained context (NTK-aware scaling)."""
    factor, context, dim = float(parameters["factor"]), args.max_position_embeddings, rotary_dim(args)
    lengths = np.maximum(positions + 1, context).astype(np.float32)
    growth = factor * lengths / np.float32(context) - (factor - 1)
    bases = np.float32(args.rope_theta) * growth ** np.float32(dim / (dim - 2))
    return _outer(positions, 1.0 / _powers(bases[:, None], args)), 1.0


def _yarn(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    """Interpolate low frequencies, keep high ones, blend between the two rotation counts beta_slow and beta_fast."""
    original = parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or args.max_position_embeddings / original
    dim = rotary_dim(args)

    def dimension_of(num_rotations: float) -> float:
        turns = original / (num_rotations * 2 * math.pi)
        return (dim * math.log(turns)) / (2 * math.log(args.rope_theta))

    low = dimension_of(parameters.get("beta_fast") or 32)
    high = dimension_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001
    ramp = ((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)).clip(0, 1)
    wavelengths = _wavelengths(args)
    kept = 1 - ramp
    frequencies = (1.0 / (np.float32(factor) * wavelengths)) * (1 - kept) + (1.0 / wavelengths) * kept
    return _outer(positions, frequencies), _yarn_attention_factor(parameters, factor)


def _yarn_attention_factor(parameters: dict[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    own, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return mscale(own) / mscale(all_dim) if own and all_dim else mscale(1)


def _longrope(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    """Divide each frequency by its own factor: one list within the original context, another beyond it."""
    original = parameters["original_max_position_embeddings"]
    lists = [np.array(parameters[f"{name}_factor"], np.float32) for name in ("short", "long")]
    for name, factors in zip(("short", "long"), lists, strict=True):
        if len(factors) != rotary_dim(args) // 2:
            raise UnsupportedModel(
                f"{name}_factor of rope type longrope has {len(factors)} numbers, not {rotary_dim(args) // 2}"
            )
    wavelengths = _wavelengths(args)
    short, long = (1.0 / (factors * wavelengths) for factors in lists)
    frequencies = np.where((positions < original)[:, None], short, long)
    return _outer(positions, frequencies), _longrope_attention_factor(args, parameters, original)


def _longrope_attention_factor(args: ModelArgs, parameters: dict[str, Any], original: int) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    factor = parameters.get("factor") or args.max_position_embeddings / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _llama3(args: ModelArgs, parameters: dict[str, Any], positions: Positions) -> tuple[Floats, float]:
    """Divide long wavelengths by the factor, keep short ones, blend between."""
    frequencies = _frequencies(args)
    factor, original = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    wavelengths = 2 * math.pi / frequencies
    scaled = np.where(wavelengths > original / low, frequencies / factor, frequencies)
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = ~(wavelengths < original / high) & ~(wavelengths > original / low)
    return _outer(positions, np.where(is_medium, blended, scaled)), 1.0


_ANGLES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
