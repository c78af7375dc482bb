"""Mixtures of experts on a GPU: which experts each token goes to, their products, and the weighted sum; bfloat16.

A pair is a token and one of its experts; rows are the pairs ordered by expert. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.decode import Workspace
from xllm_kernels.cuda.ops import current_stream, silu_and_mul

NORM_AND_ROUTE_MAX_TOKENS: int = _C_cuda.NORM_AND_ROUTE_MAX_TOKENS
"""Tokens that `norm_and_route` takes at most."""
MIX_TOKENS: int = _C_cuda.MIX_TOKENS
"""Tokens that `mix_experts` takes at most."""
MIXED_TOKENS = 4
"""Up to how many it is the faster way (H200): steps of qwen3-30b-a3b take 2.53 ms for 2.99 at 1, 3.73 for 3.97 at 2, 5.50 for 5.70 at 4,
8.4 for 7.9 at 8 (before both had longer rings)."""
RUN_EXPERTS_MAX_ROWS: int = _C_cuda.RUN_EXPERTS_MAX_ROWS
STREAMED_ROWS_OF_EXPERT = 12
"""Mean rows of an expert up to which `run_experts` streams faster than torch multiplies (H200)."""
STREAMED_ROWS_BESIDE_TILES = 8
"""The same beside `expert_tiles`: steps of qwen3-30b-a3b take 19.96 ms for 20.71 at 8 rows each; 441 us for 314 at 12."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Where T tokens go, K experts each, P = T * K pairs; tensors on the GPU."""

    weights: torch.Tensor
    """float32 [T, K]"""
    experts: torch.Tensor
    """int32 [T, K], the most probable first."""
    row_of_pair: torch.Tensor
    """int32 [P]"""
    token_of_row: torch.Tensor
    """int32 [P]"""
    starts: torch.Tensor
    """int32 [num_experts + 1]: the rows of expert e are starts[e] to starts[e + 1]."""

    @classmethod
    def empty(cls, num_tokens: int, num_experts: int, top_k: int, device: torch.device) -> Routing:
        """Uninitialised memory for a routing."""

        def integers(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return cls(
            torch.empty((num_tokens, top_k), dtype=torch.float32, device=device),
            integers(num_tokens, top_k),
            integers(num_tokens * top_k),
            integers(num_tokens * top_k),
            integers(num_experts + 1),
        )


def why_no_run_experts(num_experts: int, hidden: int, inner: int) -> str | None:
    """Why `run_experts` does not serve weights of these sizes; None when it does."""
    if num_experts % 32:
        return "the number of experts must be a multiple of 32"
    return _C_cuda.why_no_run_experts(num_experts, hidden, inner)


def route(logits: torch.Tensor, top_k: int, *, renormalises: bool) -> Routing:
    """Choose the `top_k` most probable of E experts for each of T tokens from logits [T, E]; equals by rising number.

    Weights are the softmax over all experts, brought to a sum of 1 if `renormalises`.
    """
    routing = Routing.empty(len(logits), logits.shape[1], top_k, logits.device)
    _C_cuda.route(
        logits,
        renormalises,
        routing.weights,
        routing.experts,
        routing.row_of_pair,
        routing.token_of_row,
        routing.starts,
        torch.empty(_C_cuda.ORDER_BLOCKS * len(routing.starts[1:]), dtype=torch.int32, device=routing.starts.device),
        current_stream(),
    )
    return routing


def routing_of(weights: torch.Tensor, experts: torch.Tensor, num_experts: int) -> Routing:
    """Return the routing of experts that somebody else chose: `weights` float32 [T, K], `experts` int [T, K] of `num_experts`."""
    empty = Routing.empty(len(experts), num_experts, experts.shape[1], experts.device)
    routing = replace(empty, weights=weights.contiguous(), experts=experts.int().contiguous())
    _C_cuda.order_pairs(
        routing.weights,
        routing.experts,
        routing.row_of_pair,
        routing.token_of_row,
        routing.starts,
        torch.empty(_C_cuda.ORDER_BLOCKS * len(routing.starts[1:]), dtype=torch.int32, device=routing.starts.device),
        current_stream(),
    )
    return routing


def norm_and_route(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    gate: torch.Tensor,
    top_k: int,
    workspace: Workspace,
    *,
    renormalises: bool,
) -> tuple[torch.Tensor, Routing]:
    """Return (normed = rms_norm(x) [T, H], its routing by the logits normed gate^T), T at most 128; gate [E, H]."""
    routing = Routing.empty(len(x), len(gate), top_k, x.device)
    normed = torch.empty_like(x)
    _C_cuda.norm_and_route(
        x,
        norm_weight,
        eps,
        gate,
        renormalises,
        normed,
        routing.weights,
        routing.experts,
        routing.row_of_pair,
        routing.token_of_row,
        routing.starts,
        workspace.memory,
        workspace.counters,
        current_stream(),
    )
    return normed, routing


def why_no_mix_experts(num_tokens: int, num_experts: int, top_k: int, hidden: int, inner: int) -> str | None:
    """Why `mix_experts` does not serve these sizes; None when it does."""
    return _C_cuda.why_no_mix_experts(num_tokens, num_experts, top_k, hidden, inner)


def mix_experts(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    gate: torch.Tensor,
    stacks: tuple[torch.Tensor, torch.Tensor],
    top_k: int,
    workspace: Workspace,
    *,
    renormalises: bool,
) -> None:
    """x [T, H] += the mixture of rms_norm(x): router, choice, products and weighted sum in two kernels; T at most `MIX_TOKENS`.

    gate [E, H]; stacks: gate_up [E, 2 I, H] and down [E, H, I].
    """
    num_tokens, num_experts, inner = len(x), len(gate), stacks[1].shape[2]
    _C_cuda.mix_experts(
        x,
        norm_weight,
        eps,
        gate,
        *stacks,
        top_k,
        renormalises,
        torch.empty(num_tokens * (num_experts + 1), dtype=torch.float32, device=x.device),
        x.new_empty(num_tokens * top_k, inner),
        workspace.barrier,
        current_stream(),
    )


def run_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    routing: Routing,
    workspace: Workspace,
    *,
    columns: int = 0,
) -> torch.Tensor:
    """Return [P, H], row by row: down[e] (silu(gate[e] x[t]) * (up[e] x[t])) of each pair's expert e and token t.

    x [T, H]; gate_up [E, 2 I, H], the gate first; down [E, H, I]. Few rows of each expert stream its weights through a kernel of our
    own, `columns` (8, 16, 32; 0 chooses) at a time; many go to `expert_tiles`, or where that does not serve to torch's grouped product.
    """
    num_rows, inner = len(routing.token_of_row), down.shape[2]
    has_tiles = why_no_expert_tiles(*down.shape) is None
    streamed_rows = STREAMED_ROWS_BESIDE_TILES if has_tiles else STREAMED_ROWS_OF_EXPERT
    if num_rows > min(RUN_EXPERTS_MAX_ROWS, streamed_rows * len(down)):
        return (expert_tiles if has_tiles else _grouped)(x, gate_up, down, routing)
    gated = torch.empty((num_rows, inner), dtype=x.dtype, device=x.device)
    out = torch.empty((num_rows, x.shape[1]), dtype=x.dtype, device=x.device)
    _C_cuda.run_experts(
        x, gate_up, down, routing.token_of_row, routing.starts, columns, gated, out, workspace.barrier, current_stream()
    )
    return out


def why_no_expert_tiles(num_experts: int, hidden: int, inner: int) -> str | None:
    """Why `expert_tiles` does not serve weights of these sizes; None when it does."""
    return _C_cuda.why_no_expert_tiles(num_experts, hidden, inner)


def expert_tiles(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return what `run_experts` returns, by tensor cores over tiles of 128 rows of an expert: for many rows of each."""
    rows = x.new_empty(len(routing.token_of_row), x.shape[1])
    gated = x.new_empty(len(rows), down.shape[2])
    _C_cuda.expert_tiles(
        x.contiguous(), gate_up, down, routing.row_of_pair, routing.starts, rows, gated, rows, current_stream()
    )
    return rows


def combine_experts(
    y: torch.Tensor,
    routing: Routing,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """residual [T, H] += each token's weighted sum over the rows of `y` [P, H]; return rms_norm(residual), or residual without a norm.

    Without a residual: return the sums alone.
    """
    if residual is None:
        out = y.new_empty(len(routing.weights), y.shape[1])
    else:
        out = residual if norm_weight is None else torch.empty_like(residual)
    _C_cuda.combine_experts(y, routing.weights, routing.row_of_pair, residual, norm_weight, eps, out, current_stream())
    return out


def _grouped(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing) -> torch.Tensor:
    ends = routing.starts[1:]
    rows = x.index_select(0, routing.token_of_row)
    gated = silu_and_mul(F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends))
    return F.grouped_mm(gated, down.transpose(1, 2), offs=ends)
