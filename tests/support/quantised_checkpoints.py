"""Quantises the matrices of a tiny checkpoint as published ones are. Knows nothing of xLLM.

Each format comes with the plain matrices that it stands for, so that a test can compare answers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def configs(group: int) -> dict[str, dict[str, Any]]:
    """Return format -> its `quantization_config`, for groups and blocks of `group`."""
    integers = {"num_bits": 8, "type": "int", "symmetric": True}
    gptq = {"quant_method": "gptq", "group_size": group}
    return {
        "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [group, group]},
        "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "static"},
        "w8a8": _one_group({**integers, "strategy": "channel"}, {**integers, "strategy": "token", "dynamic": True}),
        "packed": _one_group(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True}, None
        ),
        "awq": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True},
        "gptq": {**gptq, "bits": 4, "desc_act": False, "sym": False},
        "gptq-8-act-order": {**gptq, "bits": 8, "desc_act": True, "sym": True},
    }


def _one_group(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": weights} | ({} if inputs is None else {"input_activations": inputs})
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


CONFIGS = configs(GROUP)


def quantised_pair(source: Path, form: str, folder: Path, group: int = GROUP) -> tuple[Path, Path]:
    """Return (the checkpoint `source` quantised, the plain checkpoint of the same values), both made in `folder`."""
    tensors = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    stored: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "_proj" in name and name.endswith(".weight"):
            layer = name.removesuffix(".weight")
            pieces, values = _QUANTISERS[form](tensor, generator, group)
            stored |= {f"{layer}.{piece}": value.contiguous() for piece, value in pieces.items()}
            plain[name] = values.contiguous()
        else:
            stored[name] = plain[name] = tensor
    config = json.loads((source / "config.json").read_text())
    for where, weights, quantisation in (("quantised", stored, configs(group)[form]), ("plain", plain, None)):
        shutil.copytree(source, folder / where)
        save_file(weights, folder / where / "model.safetensors")
        written = config if quantisation is None else {**config, "quantization_config": quantisation}
        (folder / where / "config.json").write_text(json.dumps(written))
    return folder / "quantised", folder / "plain"


def _fp8_block(weight: torch.Tensor, _: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    rows, columns = weight.shape
    grid = torch.rand(-(-rows // group), -(-columns // group)) * 0.01 + 0.001
    spread = grid.repeat_interleave(group, 0)[:rows].repeat_interleave(group, 1)[:, :columns]
    values = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": grid}, values.float() * spread


def _fp8_tensor(weight: torch.Tensor, _: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.5)}, values.float() * scale


def _w8a8(weight: torch.Tensor, _: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scale).round().to(torch.int8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def _groups(
    weight: torch.Tensor, bits: int, generator: torch.Generator, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(values [n, k], zeros [n, k / group], scales) of random zero points near the middle."""
    middle = 1 << (bits - 1)
    zeros = torch.randint(middle - 2, middle + 2, (len(weight), weight.shape[1] // group), generator=generator)
    scales = (weight.view(len(weight), -1, group).abs().amax(-1) / (middle - 3)).half().float()
    values = (weight / scales.repeat_interleave(group, 1)).round() + zeros.repeat_interleave(group, 1)
    return values.clamp(0, 2 * middle - 1).to(torch.int32), zeros.to(torch.int32), scales


def _value(values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return (values - zeros.repeat_interleave(group, 1)) * scales.repeat_interleave(group, 1)


def pack(values: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """int32 [..., N] of fields -> int32 [..., N * bits / 32]; field `order[i]` of a word lies in place i."""
    count = 32 // bits
    fields = values.unflatten(-1, (-1, count)).to(torch.int64)
    fields = fields[..., list(order or range(count))]
    words = (fields << (torch.arange(count) * bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _packed(weight: torch.Tensor, _: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scales = (weight.view(len(weight), -1, group).abs().amax(-1) / 7).bfloat16().float()
    values = (weight / scales.repeat_interleave(group, 1)).round().clamp(-8, 7).to(torch.int32)
    pieces = {
        "weight_packed": pack(values + 8, 4),
        "weight_scale": scales.bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return pieces, values * scales.repeat_interleave(group, 1)


def _awq(weight: torch.Tensor, generator: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    values, zeros, scales = _groups(weight, 4, generator, group)
    pieces = {
        "qweight": pack(values.t(), 4, AWQ_ORDER),
        "qzeros": pack(zeros.t(), 4, AWQ_ORDER),
        "scales": scales.t().half(),
    }
    return pieces, _value(values, zeros, scales, group)


def _gptq(weight: torch.Tensor, generator: torch.Generator, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    values, zeros, scales = _groups(weight, 4, generator, group)
    pieces = {
        "qweight": pack(values, 4).t(),
        "qzeros": pack(zeros.t() - 1, 4),
        "scales": scales.t().half(),
    }
    return pieces, _value(values, zeros, scales, group)


def _gptq_act_order(
    weight: torch.Tensor, generator: torch.Generator, group: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Columns belong to groups in a random order."""
    order = torch.randperm(weight.shape[1], generator=generator)
    values, zeros, scales = _groups(weight[:, order], 8, generator, group)
    back = order.argsort()
    pieces = {
        "qweight": pack(values[:, back], 8).t(),
        "qzeros": pack(zeros.t() - 1, 8),
        "scales": scales.t().half(),
        "g_idx": (torch.arange(weight.shape[1]) // group)[back].to(torch.int32),
    }
    return pieces, _value(values, zeros, scales, group)[:, back]


_QUANTISERS = {
    "fp8-block": _fp8_block,
    "fp8-tensor": _fp8_tensor,
    "w8a8": _w8a8,
    "packed": _packed,
    "awq": _awq,
    "gptq": _gptq,
    "gptq-8-act-order": _gptq_act_order,
}
