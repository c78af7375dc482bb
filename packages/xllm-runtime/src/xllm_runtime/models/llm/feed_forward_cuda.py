"""What follows a layer's attention in a decode step on a GPU: a dense network or experts, for few rows or for more.

Nothing waits for the device. Knows nothing of attention but its output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from xllm_runtime.layers.experts import SparseMLP
from xllm_runtime.layers.linear import Linear
from xllm_runtime.models.llm.llama import LlamaMLP

if TYPE_CHECKING:
    from xllm_kernels.cuda.decode import UnfinishedNorm
    from xllm_kernels.cuda.experts import Routing


@dataclass(frozen=True, slots=True)
class AttendedRows:
    """Where a layer stands after its attention."""

    attended: torch.Tensor
    """[B, Hq D]"""
    o_proj: Linear
    norm_weight: torch.Tensor
    """[H], before the network."""
    next_norm_weight: torch.Tensor
    """[H], before what comes after it."""


class DecodeFeedForward(Protocol):
    """One layer's feed-forward network over rows [B, H] of 16-bit floats."""

    def stream(self, hidden: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> None:
        """hidden += network(rms_norm(hidden)), B at most `streamed_rows`."""

    def batch(self, rows: AttendedRows, residual: torch.Tensor, eps: float) -> torch.Tensor:
        """residual += projected attention; residual += network(norm(residual)); return the next layer's norm of it."""

    @property
    def streamed_rows(self) -> int:
        """Rows that `stream` takes at most; 0 where it does not serve."""


class DenseFeedForward:
    """`DecodeFeedForward` of a gated network."""

    def __init__(self, mlp: LlamaMLP, streamed_rows: int) -> None:
        from xllm_kernels.cuda import decode, ops

        self._gate_up, self._down = mlp.gate_up_proj, mlp.down_proj
        self._decode, self._ops = decode, ops
        self._inner = sum(self._gate_up.rows) // 2
        self.streamed_rows = streamed_rows

    def stream(self, hidden: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> None:
        """See `DecodeFeedForward.stream`: two kernels."""
        kinds = self._decode.Epilogue
        gated = hidden.new_empty(len(hidden), self._inner)
        self._decode.linear_stream(
            hidden,
            plain_weight(self._gate_up),
            out=gated,
            epilogue=kinds.SILU_AND_MUL,
            norm_weight=norm_weight,
            eps=eps,
        )
        self._decode.linear_stream(
            gated,
            plain_weight(self._down),
            out=hidden,
            epilogue=kinds.ADD_RESIDUAL,
        )

    def join(
        self, norm: UnfinishedNorm, hidden: torch.Tensor, next_norm_weight: torch.Tensor | None, eps: float
    ) -> None:
        """hidden += network(`norm` finished); leave the norm after it in `norm`, if one follows. 9 to 32 rows, two kernels."""
        kinds = self._decode.Epilogue
        gated = hidden.new_empty(len(hidden), self._inner)
        gate_up, down = plain_weight(self._gate_up), plain_weight(self._down)
        self._decode.linear_batch(norm, gate_up, out=gated, epilogue=kinds.SILU_AND_MUL, eps=eps)
        following = None if next_norm_weight is None else (next_norm_weight, norm)
        self._decode.linear_batch(gated, down, out=hidden, epilogue=kinds.ADD_RESIDUAL, next_norm=following)

    def batch(self, rows: AttendedRows, residual: torch.Tensor, eps: float) -> torch.Tensor:
        """See `DecodeFeedForward.batch`."""
        projected = rows.o_proj(rows.attended)
        x = self._ops.add_rms_norm(projected, residual, rows.norm_weight, eps)
        fuses = fuses_gates(self._gate_up, len(x))
        gated = gated_product(x, self._gate_up) if fuses else self._ops.silu_and_mul(self._gate_up(x))
        output = self._down(gated)
        return self._ops.add_rms_norm(output, residual, rows.next_norm_weight, eps)


class SparseFeedForward:
    """`DecodeFeedForward` of experts."""

    def __init__(self, mlp: SparseMLP) -> None:
        from xllm_kernels.cuda import decode, experts, ops

        self._mlp, self._sizes = mlp, mlp.sizes
        self._decode, self._experts, self._ops = decode, experts, ops
        self._workspace = decode.shared_workspace(mlp.gate.device)
        self._can_fuse_routing = mlp.sizes.hidden_size % 64 == 0
        sizes = (mlp.sizes.num_experts, mlp.sizes.top_k, mlp.sizes.hidden_size, mlp.sizes.intermediate_size)
        why_no_mix = experts.why_no_mix_experts(experts.MIXED_TOKENS, *sizes)
        self._mixed_rows = experts.MIXED_TOKENS if why_no_mix is None else 0
        self.streamed_rows = 8 if self._can_fuse_routing else self._mixed_rows

    def stream(self, hidden: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> None:
        """See `DecodeFeedForward.stream`: two kernels, or four."""
        if len(hidden) <= self._mixed_rows:
            top_k, renormalises = self._sizes.top_k, self._sizes.renormalises
            gate, stacks = self._mlp.gate, self._mlp.stacks
            self._experts.mix_experts(
                hidden, norm_weight, eps, gate, stacks, top_k, self._workspace, renormalises=renormalises
            )
            return
        normed, routing = self._norm_and_route(hidden, norm_weight, eps)
        y = self._experts.run_experts(normed, *self._mlp.stacks, routing, self._workspace)
        self._experts.combine_experts(y, routing, hidden)

    def batch(self, rows: AttendedRows, residual: torch.Tensor, eps: float) -> torch.Tensor:
        """See `DecodeFeedForward.batch`."""
        if (
            self._can_fuse_routing
            and rows.o_proj.bias is None
            and len(residual) <= self._experts.NORM_AND_ROUTE_MAX_TOKENS
        ):
            self._add_projected(rows, residual)
            x, routing = self._norm_and_route(residual, rows.norm_weight, eps)
        else:
            x = self._ops.add_rms_norm(rows.o_proj(rows.attended), residual, rows.norm_weight, eps)
            logits = F.linear(x, self._mlp.gate)
            routing = self._experts.route(logits, self._sizes.top_k, renormalises=self._sizes.renormalises)
        y = self._experts.run_experts(x, *self._mlp.stacks, routing, self._workspace)
        return self._experts.combine_experts(y, routing, residual, rows.next_norm_weight, eps)

    def _add_projected(self, rows: AttendedRows, residual: torch.Tensor) -> None:
        """residual += projected attention: where it serves, by the kernel that leaves no parts of K to be joined."""
        weight, kind = plain_weight(rows.o_proj), self._decode.Epilogue.ADD_RESIDUAL
        if len(residual) <= self._decode.BATCHED_ROWS and self._decode.why_no_linear_batch(*weight.shape) is None:
            self._decode.linear_batch(rows.attended, weight, out=residual, epilogue=kind)
        else:
            torch.addmm(residual, rows.attended, weight.t(), out=residual)

    def _norm_and_route(
        self, hidden: torch.Tensor, norm_weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, Routing]:
        sizes = self._sizes
        return self._experts.norm_and_route(
            hidden, norm_weight, eps, self._mlp.gate, sizes.top_k, self._workspace, renormalises=sizes.renormalises
        )


def fuses_gates(gate_up: Linear, num_rows: int) -> bool:
    """Whether `gated_product` is faster for so many rows than cuBLAS and a kernel for gates.

    Never where the matrix is kept quantised: its plain one has no rows then.
    """
    from xllm_kernels.cuda import decode

    n, k = plain_weight(gate_up).shape
    return gate_up.bias is None and decode.BATCHED_ROWS < num_rows <= decode.most_gated_rows(n, k)


def gated_product(x: torch.Tensor, gate_up: Linear) -> torch.Tensor:
    """Return silu(gate(x)) * up(x) of x [B, H] in one kernel, [B, I]; only where `fuses_gates`."""
    from xllm_kernels.cuda import decode

    weight = plain_weight(gate_up)
    gated = x.new_empty(len(x), len(weight) // 2)
    decode.linear_batch(x, weight, out=gated, epilogue=decode.Epilogue.SILU_AND_MUL)
    return gated


def plain_weight(linear: Linear) -> torch.Tensor:
    """Return the unquantised matrix [rows, in_features] of `linear`."""
    return linear.weight
