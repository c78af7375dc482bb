"""A mixture of experts: each token goes through the few feed-forward networks that a router chooses for it, and their weighted sum.

Knows nothing of where in a model it stands. Sources: Shazeer et al., 2017; Qwen3's technical report, 2025, for the router.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.errors import ModelLoadError
from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.parameter import ParameterSlot, WeightTarget, WeightTargets, whole_parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """How many experts, and how large."""

    num_experts: int
    top_k: int
    """Experts of one token."""
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    renormalises: bool
    """Whether the weights of a token's experts are brought to a sum of 1."""

    @classmethod
    def from_config(cls, config: dict[str, Any], hidden_size: int) -> ExpertSizes:
        """Take them from config.json, old or as transformers 5 writes it; raises `ModelLoadError` naming a field that is missing."""
        try:
            return cls(
                num_experts=int(
                    config.get("num_local_experts") or config.get("n_routed_experts") or config["num_experts"]
                ),
                top_k=int(config["num_experts_per_tok"]),
                hidden_size=hidden_size,
                intermediate_size=int(config["moe_intermediate_size"]),
                renormalises=bool(config.get("norm_topk_prob", False)),
            )
        except KeyError as error:
            raise ModelLoadError(f"config.json of a mixture of experts lacks the field {error.args[0]}") from error


class ExpertOperations(Protocol):
    """Who computes a mixture; `TorchExperts` everywhere, `CUDAExperts` where the kernels serve."""

    def forward(self, x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """Return [T, H] of `x` [T, H] by the router's `logits` [T, E]; gate_up [E, 2 I, H], gate first; down [E, H, I]."""

    def mix(
        self,
        x: torch.Tensor,
        chosen: tuple[torch.Tensor, torch.Tensor],
        stacks: tuple[torch.Tensor, torch.Tensor],
        onto: torch.Tensor,
    ) -> torch.Tensor:
        """Return `onto` [T, H], which may be changed, plus the mixture by a choice already made.

        `chosen`: weights float32 and experts int64, [T, K] each; `stacks`: gate_up and down as above.
        """


class SparseMLP(nn.Module):
    """Router and experts; the experts' weights are two matrices, one expert's rows below another's."""

    def __init__(self, sizes: ExpertSizes, dtype: torch.dtype, operations: Operations, kernels: str = "auto") -> None:
        super().__init__()
        self.sizes = sizes
        inner_rows = sizes.num_experts * 2 * sizes.intermediate_size
        self.gate = nn.Parameter(torch.empty(sizes.num_experts, sizes.hidden_size, dtype=dtype), requires_grad=False)
        self.gate_up_proj = nn.Parameter(torch.empty(inner_rows, sizes.hidden_size, dtype=dtype), requires_grad=False)
        """[E 2 I, H]"""
        self.down_proj = nn.Parameter(
            torch.empty(sizes.num_experts * sizes.hidden_size, sizes.intermediate_size, dtype=dtype),
            requires_grad=False,
        )
        """[E H, I]"""
        self._operations = select_expert_operations(sizes, dtype, torch.get_default_device(), operations, kernels)

    @property
    def can_be_captured(self) -> bool:
        """Whether a step may be captured in a CUDA graph: torch alone reads back who chose which expert."""
        return not isinstance(self._operations, TorchExperts)

    @property
    def stacks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate_up [E, 2 I, H], down [E, H, I])."""
        sizes = self.sizes
        return (
            self.gate_up_proj.view(sizes.num_experts, -1, sizes.hidden_size),
            self.down_proj.view(sizes.num_experts, sizes.hidden_size, -1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, H]."""
        return self._operations.forward(x, F.linear(x, self.gate), *self.stacks)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the router's tensor and three an expert."""
        yield whole_parameter(f"{prefix}.gate.weight", self, "gate")
        sizes = self.sizes
        gate_up = ParameterSlot(self, "gate_up_proj", [sizes.intermediate_size] * (2 * sizes.num_experts))
        down = ParameterSlot(self, "down_proj", [sizes.hidden_size] * sizes.num_experts)
        for expert in range(sizes.num_experts):
            yield f"{prefix}.experts.{expert}.gate_proj.weight", WeightTarget(gate_up, 2 * expert)
            yield f"{prefix}.experts.{expert}.up_proj.weight", WeightTarget(gate_up, 2 * expert + 1)
            yield f"{prefix}.experts.{expert}.down_proj.weight", WeightTarget(down, expert)


def choose_experts(logits: torch.Tensor, top_k: int, *, renormalises: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights float32, experts int64), each [T, `top_k`], best first: the largest of a softmax over all experts."""
    weights, experts = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if renormalises else weights, experts


class TorchExperts:
    """`ExpertOperations` with torch alone: the experts that anybody chose, one after the other."""

    def __init__(self, sizes: ExpertSizes, operations: Operations) -> None:
        self._sizes = sizes
        self._operations = operations

    def forward(self, x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """See `ExpertOperations.forward`; sums in float32."""
        weights, experts = choose_experts(logits, self._sizes.top_k, renormalises=self._sizes.renormalises)
        return mixed_experts(x, weights, experts, (gate_up, down), self._operations)

    def mix(
        self,
        x: torch.Tensor,
        chosen: tuple[torch.Tensor, torch.Tensor],
        stacks: tuple[torch.Tensor, torch.Tensor],
        onto: torch.Tensor,
    ) -> torch.Tensor:
        """See `ExpertOperations.mix`."""
        return mixed_experts(x, *chosen, stacks, self._operations) + onto


def mixed_experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    stacks: tuple[torch.Tensor, torch.Tensor],
    operations: Operations,
) -> torch.Tensor:
    """Return [T, H]: `x` [T, H] through the `experts` [T, K] of each token, summed by `weights` [T, K] in float32.

    `stacks`: (gate_up [E, 2 I, H], gate first; down [E, H, I]).
    """
    gate_up, down = stacks
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(experts.flatten().tolist())):
        tokens, ranks = (experts == expert).nonzero(as_tuple=True)
        gated = operations.silu_and_mul(F.linear(x[tokens], gate_up[expert]))
        output = F.linear(gated, down[expert]).float()
        total.index_add_(0, tokens, output * weights[tokens, ranks].unsqueeze(1))
    return total.to(x.dtype)


class CUDAExperts:
    """`ExpertOperations` on `xllm_kernels.cuda.experts`; only constructed where `explain_cuda_experts` is empty."""

    def __init__(self, sizes: ExpertSizes) -> None:
        from xllm_kernels.cuda import decode, experts

        self._sizes = sizes
        self._experts = experts
        self._workspace_of = decode.shared_workspace

    def forward(self, x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """See `ExpertOperations.forward`."""
        routing = self._experts.route(logits, self._sizes.top_k, renormalises=self._sizes.renormalises)
        y = self._experts.run_experts(x, gate_up, down, routing, self._workspace_of(x.device))
        return self._experts.combine_experts(y, routing)

    def mix(
        self,
        x: torch.Tensor,
        chosen: tuple[torch.Tensor, torch.Tensor],
        stacks: tuple[torch.Tensor, torch.Tensor],
        onto: torch.Tensor,
    ) -> torch.Tensor:
        """See `ExpertOperations.mix`; adds to `onto` in place."""
        routing = self._experts.routing_of(*chosen, self._sizes.num_experts)
        y = self._experts.run_experts(x, *stacks, routing, self._workspace_of(x.device))
        return self._experts.combine_experts(y, routing, onto)


def select_expert_operations(
    sizes: ExpertSizes, dtype: torch.dtype, device: torch.device, operations: Operations, name: str = "auto"
) -> ExpertOperations:
    """Return the kernels where they serve, else torch; `name` "torch" forces torch."""
    if name == "auto" and not explain_cuda_experts(sizes, dtype, device):
        return CUDAExperts(sizes)
    return TorchExperts(sizes, operations)


def explain_cuda_experts(sizes: ExpertSizes, dtype: torch.dtype, device: torch.device) -> list[str]:
    """Return every reason why `CUDAExperts` cannot serve; empty where it can."""
    if device.type != "cuda":
        return [f"the kernels run on a CUDA GPU, not on {device}"]
    from xllm_kernels import explain

    reasons = explain("run_experts", str(device))
    if dtype != torch.bfloat16:
        reasons.append("the kernels compute in bfloat16 only")
    if not reasons:
        from xllm_kernels.cuda.experts import why_no_run_experts

        reason = why_no_run_experts(sizes.num_experts, sizes.hidden_size, sizes.intermediate_size)
        reasons += [reason] if reason else []
    return reasons
