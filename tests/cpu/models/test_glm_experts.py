"""The mixture of GLM-4.5: a token's experts come from the best groups, their weights from scores without the bias."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from support.glm_experts import glm_mlp
from xllm_runtime.models.llm.glm4_moe import Glm4MoeMLP


def one_token(mlp: Glm4MoeMLP, x: torch.Tensor) -> torch.Tensor:
    """What the model's paper says, for one token [H], by plain loops."""
    scores = torch.sigmoid(mlp.gate.double() @ x)
    ranked = (scores + mlp.bias.double()).tolist()
    size = len(ranked) // mlp.settings.num_groups
    groups = [sorted(range(g * size, (g + 1) * size), key=lambda e: -ranked[e]) for g in range(mlp.settings.num_groups)]
    groups.sort(key=lambda experts: -sum(ranked[expert] for expert in experts[:2]))
    open_experts = [expert for experts in groups[: mlp.settings.num_chosen_groups] for expert in experts]
    chosen = sorted(open_experts, key=lambda expert: -ranked[expert])[: mlp.sizes.top_k]
    weights = scores[chosen] / scores[chosen].sum() * mlp.settings.factor
    gate_up, down = mlp.stacks
    total = mlp.shared_experts(x[None])[0]
    for weight, expert in zip(weights, chosen, strict=True):
        gate, up = (gate_up[expert] @ x).chunk(2)
        total = total + weight * (down[expert] @ (F.silu(gate) * up))
    return total


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_equals_single_tokens(num_groups: int) -> None:
    torch.manual_seed(0)
    mlp = glm_mlp(torch.float64, num_groups)
    for parameter in mlp.parameters():
        parameter.data.normal_(0, 0.2 if parameter.dim() == 1 else parameter.shape[1] ** -0.5)
    x = torch.randn(6, 512, dtype=torch.float64)
    expected = torch.stack([one_token(mlp, row) for row in x])
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-4)
