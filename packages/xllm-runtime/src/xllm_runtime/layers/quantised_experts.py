"""A mixture of experts whose matrices stay as the checkpoint stores them, in 8 bits. Knows nothing of where in a model it stands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from xllm_kernels.quantised_matrix import GROUP_COLUMNS, QuantisedMatrix, numbers
from xllm_runtime.layers.experts import ExpertSizes, TorchExperts
from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.layers.quantised_linear import QuantisedLinear
from xllm_runtime.layers.quantised_products import TorchProducts, explain_cuda_products
from xllm_runtime.weights.kept_matrix import explain_kept
from xllm_runtime.weights.quantisation import QuantisationScheme

STREAMED_ROWS_OF_EXPERT = 16
"""Mean rows of an expert up to which its matrices multiply as they are stored; more are worth making them plain."""


class QuantisedSparseMLP(nn.Module):
    """Router and experts; see `SparseMLP`."""

    def __init__(
        self, sizes: ExpertSizes, dtype: torch.dtype, operations: Operations, scheme: QuantisationScheme
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.gate = nn.Parameter(torch.empty(sizes.num_experts, sizes.hidden_size, dtype=dtype), requires_grad=False)
        inner, hidden, experts = sizes.intermediate_size, sizes.hidden_size, range(sizes.num_experts)
        halves = [(f"{expert}.{half}_proj", inner) for expert in experts for half in ("gate", "up")]
        outputs = [(f"{expert}.down_proj", hidden) for expert in experts]
        self.gate_up_proj = _stack(hidden, halves, dtype, scheme)
        """[E 2 I, H]"""
        self.down_proj = _stack(inner, outputs, dtype, scheme)
        """[E H, I]"""
        self._fallback = TorchExperts(sizes, operations)
        self._device = torch.get_default_device()

    @property
    def can_be_captured(self) -> bool:
        """Whether a step may be captured in a CUDA graph."""
        return self._device.type == "cuda" and self.gate_up_proj.matrix is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, H]."""
        logits = F.linear(x, self.gate)
        gate_up, down = self.gate_up_proj.matrix, self.down_proj.matrix
        if self._device.type != "cuda" or gate_up is None or down is None:
            return self._fallback.forward(x, logits, *self._plain_stacks(x.dtype))
        from xllm_kernels.cuda import decode, experts
        from xllm_kernels.triton import quantised_experts, quantised_product

        routing = experts.route(logits, self.sizes.top_k, renormalises=self.sizes.renormalises)
        if len(routing.token_of_row) <= STREAMED_ROWS_OF_EXPERT * self.sizes.num_experts:
            y = quantised_experts.run_quantised_experts(
                x.contiguous(), gate_up, down, routing.token_of_row, routing.starts
            )
        else:
            plain = (quantised_product.plain_numbers(matrix, x.dtype) for matrix in (gate_up, down))
            workspace = decode.shared_workspace(x.device)
            y = experts.run_experts(x.contiguous(), *self._stacks(*plain), routing, workspace)
        return experts.combine_experts(y, routing, torch.zeros_like(x))

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the router's tensor and the pieces of three matrices an expert."""
        yield whole_parameter(f"{prefix}.gate.weight", self, "gate")
        yield from self.gate_up_proj.weight_targets(f"{prefix}.experts")
        yield from self.down_proj.weight_targets(f"{prefix}.experts")

    def _plain_stacks(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self._stacks(_plain(self.gate_up_proj, dtype), _plain(self.down_proj, dtype))

    def _stacks(self, gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate_up [E, 2 I, H], down [E, H, I])."""
        experts = self.sizes.num_experts
        return gate_up.view(experts, -1, gate_up.shape[1]), down.view(experts, -1, down.shape[1])


def explain_quantised_experts(
    sizes: ExpertSizes, dtype: torch.dtype, scheme: QuantisationScheme | None, *, kept: str
) -> list[str]:
    """Return every reason why the experts' matrices cannot stay as `scheme` stores them; empty where they can. `kept`: see `new_linear`."""
    if scheme is None or kept == "never":
        return ["nothing is to be kept"]
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    reasons = explain_kept(scheme, hidden) + explain_kept(scheme, inner)
    if scheme.form not in ("float8", "int8"):
        reasons.append("experts stay in 8 bits only")
    if hidden % GROUP_COLUMNS or inner % GROUP_COLUMNS:
        reasons.append(f"their sizes {(hidden, inner)} are not multiples of {GROUP_COLUMNS}")
    if kept == "auto":
        reasons += explain_cuda_products(torch.get_default_device(), dtype)
        if dtype != torch.bfloat16:
            reasons.append("routing computes in bfloat16")
        if sizes.num_experts % 32:
            reasons.append("the number of experts is no multiple of 32")
    return reasons


def _stack(
    in_features: int, parts: list[tuple[str, int]], dtype: torch.dtype, scheme: QuantisationScheme
) -> QuantisedLinear:
    return QuantisedLinear(in_features, parts, has_bias=False, dtype=dtype, scheme=scheme, products=TorchProducts())


def _plain(linear: QuantisedLinear, dtype: torch.dtype) -> torch.Tensor:
    matrix: QuantisedMatrix | None = linear.matrix
    return linear.weight if matrix is None else numbers(matrix, dtype)
