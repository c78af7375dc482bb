"""How the matrices of a Hugging Face checkpoint are quantised, from its `quantization_config`. Knows nothing of tensors.

Formats: `fp8` (one scale a tensor, a row, or a block of 128 x 128 as DeepSeek and Qwen publish them), `compressed-tensors` with 8-bit
floats or integers or packed 4-bit integers, `awq` (Lin et al., 2023) and `gptq` (Frantar et al., 2022) with 4 or 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs

QuantisedForm = Literal["float8", "int8", "packed", "awq", "gptq"]
SUPPORTED = "fp8, compressed-tensors, awq, gptq"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationScheme:
    """One checkpoint's way of storing matrices [rows, columns]."""

    form: QuantisedForm
    bits: int
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, where the scales form a grid; None: by their shape, one for all or one a row."""
    group_size: int = 0
    """Columns of a row that share a scale; 0 is the whole row."""
    zero_offset: int = 0
    """What has to be added to stored zero points."""
    quantises_input: bool = False
    """Whether inputs are meant to be quantised, too, token by token."""
    has_column_order: bool = False
    """Whether columns belong to groups in an order of their own (act-order GPTQ)."""

    @property
    def pieces(self) -> frozenset[str]:
        """Tensors that make up one matrix, by the last part of their names; all but `g_idx` must be there."""
        if self.form == "float8":
            return frozenset({"weight", "weight_scale_inv" if self.block else "weight_scale"})
        if self.form == "int8":
            return frozenset({"weight", "weight_scale"})
        if self.form == "packed":
            return frozenset({"weight_packed", "weight_scale", "weight_shape"})
        return frozenset({"qweight", "qzeros", "scales"} | ({"g_idx"} if self.form == "gptq" else set()))


def quantisation_of(args: ModelArgs) -> QuantisationScheme | None:
    """Return the scheme of a model's checkpoint, None where nothing is quantised. Raises `UnsupportedModel` saying why it is unknown."""
    config = args.raw.get("quantization_config")
    if not config:
        return None
    method = config.get("quant_method", "unknown")
    if method == "fp8":
        return _fp8(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    if method == "awq":
        return _awq(config)
    if method == "gptq":
        return _gptq(config)
    raise UnsupportedModel(f"quantisation {method!r} is not one of {SUPPORTED}")


def explain_quantisation(args: ModelArgs) -> list[str]:
    """Return why the checkpoint's quantisation is not known here; empty where it is, or there is none."""
    try:
        quantisation_of(args)
    except UnsupportedModel as error:
        return [error.message]
    return []


def _fp8(config: dict[str, Any]) -> QuantisationScheme:
    block = config.get("weight_block_size")
    if block is not None and len(block) != 2:
        raise UnsupportedModel(f"weight_block_size {block} has not two sizes")
    return QuantisationScheme(
        form="float8", bits=8, block=(int(block[0]), int(block[1])) if block else None, quantises_input=True
    )


def _compressed_tensors(config: dict[str, Any]) -> QuantisationScheme:
    groups = list((config.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise UnsupportedModel(f"compressed-tensors with {len(groups)} groups of layers, not one")
    weights = groups[0].get("weights") or {}
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    quantises_input = groups[0].get("input_activations") is not None
    if not weights.get("symmetric", True):
        raise UnsupportedModel("compressed-tensors with zero points")
    if bits == 8 and kind == "float" and strategy in ("tensor", "channel"):
        return QuantisationScheme(form="float8", bits=8, quantises_input=quantises_input)
    if bits == 8 and kind == "int" and strategy in ("tensor", "channel"):
        return QuantisationScheme(form="int8", bits=8, quantises_input=quantises_input)
    if bits == 4 and kind == "int" and strategy in ("group", "channel"):
        return QuantisationScheme(form="packed", bits=4, group_size=max(int(weights.get("group_size") or 0), 0))
    raise UnsupportedModel(f"compressed-tensors with {bits} bits of type {kind} a {strategy}")


def _awq(config: dict[str, Any]) -> QuantisationScheme:
    bits, version = int(config.get("bits", 4)), str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise UnsupportedModel(f"awq with {bits} bits in version {version}, not 4 in version gemm")
    return QuantisationScheme(form="awq", bits=bits, group_size=max(int(config.get("group_size", 128)), 0))


def _gptq(config: dict[str, Any]) -> QuantisationScheme:
    bits, layout = int(config.get("bits", 4)), config.get("checkpoint_format", "gptq")
    if bits not in (4, 8) or layout not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"gptq with {bits} bits in format {layout}, not 4 or 8 in gptq or gptq_v2")
    return QuantisationScheme(
        form="gptq",
        bits=bits,
        group_size=max(int(config.get("group_size", 128)), 0),
        has_column_order=bool(config.get("desc_act", False)),
        zero_offset=1 if layout == "gptq" else 0,
    )
