"""The kernels of expert mixtures against float64 on the GPU, over random shapes, with outputs poisoned before."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
NAN = float("nan")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).bfloat16()


def error_of(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def check_routing(routing, logits: torch.Tensor, top_k: int, *, renormalises: bool) -> None:
    num_experts = logits.shape[1]
    probabilities = logits.double().softmax(-1)
    expected, experts = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    expected, experts = expected[:, :top_k], experts[:, :top_k]
    if renormalises:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(routing.experts.long(), experts)
    assert error_of(routing.weights, expected) < 1e-5
    flat = routing.experts.flatten().long()
    counts = torch.bincount(flat, minlength=num_experts)
    assert routing.starts.tolist() == [0, *counts.cumsum(0).tolist()]
    rows = routing.row_of_pair.long()
    assert sorted(rows.tolist()) == list(range(len(flat)))
    order = torch.empty_like(flat)
    order[rows] = flat
    assert order.tolist() == sorted(flat.tolist())
    tokens = torch.arange(len(flat), device="cuda") // top_k
    assert torch.equal(routing.token_of_row[rows].long(), tokens)


@pytest.mark.parametrize("num_tokens", [1, 9, 32, 33, 3000])
@pytest.mark.parametrize(
    ("num_experts", "top_k", "renormalises"), [(128, 8, True), (64, 1, False), (32, 4, True), (256, 16, True)]
)
def test_route(num_tokens, num_experts, top_k, renormalises):
    from xllm_kernels.cuda.experts import route

    logits = normal(num_tokens, num_experts, scale=2.0)  # bfloat16, so there are equals
    check_routing(route(logits, top_k, renormalises=renormalises), logits, top_k, renormalises=renormalises)


@pytest.mark.parametrize("num_tokens", [1, 3, 9, 64, 100, 128])
@pytest.mark.parametrize(("num_experts", "top_k", "size"), [(128, 8, 2048), (64, 2, 320), (32, 1, 5120)])
def test_norm_and_route(num_tokens, num_experts, top_k, size):
    from xllm_kernels.cuda.decode import shared_workspace
    from xllm_kernels.cuda.experts import norm_and_route

    x, norm, gate = normal(num_tokens, size), normal(size), normal(num_experts, size, scale=0.05)
    workspace = shared_workspace(torch.device("cuda", 0))
    normed, routing = norm_and_route(x, norm, 1e-6, gate, top_k, workspace, renormalises=True)
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * norm.double()
    assert error_of(normed, expected) < 5e-3
    logits = (normed.double() @ gate.double().t()).float()
    chosen = torch.gather(logits, 1, routing.experts.long())
    best = torch.topk(logits, top_k).values
    assert error_of(chosen, best.double()) < 1e-2  # near ties of rounded logits may fall otherwise
    counts = torch.bincount(routing.experts.flatten().long(), minlength=num_experts)
    assert routing.starts.tolist() == [0, *counts.cumsum(0).tolist()]
    assert not workspace.counters.any()


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 33, 128, 500, 1100])
@pytest.mark.parametrize(
    ("num_experts", "top_k", "hidden", "inner"), [(128, 8, 2048, 768), (32, 2, 512, 256), (64, 4, 320, 192)]
)
def test_experts(num_tokens, num_experts, top_k, hidden, inner):
    from xllm_kernels.cuda.decode import Workspace
    from xllm_kernels.cuda.experts import combine_experts, route, run_experts

    x, residual, norm = normal(num_tokens, hidden), normal(num_tokens, hidden), normal(hidden)
    gate_up = normal(num_experts, 2 * inner, hidden, scale=0.05)
    down = normal(num_experts, hidden, inner, scale=0.05)
    logits = normal(num_tokens, num_experts, scale=2.0)
    logits[:, 3] += 6  # a busy expert
    routing = route(logits, top_k, renormalises=True)
    expected = torch.empty(num_tokens * top_k, hidden, dtype=torch.float64, device="cuda")
    starts = routing.starts.tolist()
    for expert in range(num_experts):
        rows = slice(starts[expert], starts[expert + 1])
        gate, up = (x[routing.token_of_row[rows].long()].double() @ gate_up[expert].double().t()).chunk(2, -1)
        expected[rows] = torch.nn.functional.silu(gate) * up @ down[expert].double().t()
    outputs, workspace = [], Workspace(torch.device("cuda", 0))
    for columns in (0, 8, 16, 32):
        torch.empty(num_tokens * top_k * (hidden + inner), dtype=torch.bfloat16, device="cuda").fill_(NAN)  # poison
        outputs.append(run_experts(x, gate_up, down, routing, workspace, columns=columns))
        assert error_of(outputs[-1], expected) < 1e-2
    total = torch.zeros(num_tokens, hidden, dtype=torch.float64, device="cuda")
    pairs = outputs[0][routing.row_of_pair.long()].double().view(num_tokens, top_k, hidden)
    total = residual.double() + (pairs * routing.weights.double().unsqueeze(-1)).sum(1)
    sums = residual.clone()
    assert combine_experts(outputs[0], routing, sums) is sums
    assert error_of(sums, total) < 5e-3
    normed = combine_experts(outputs[0], routing, residual, norm, 1e-6)
    assert torch.equal(residual, sums)
    wide = sums.double()
    assert error_of(normed, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * norm.double()) < 5e-3


def mixture(x, normed, gate, gate_up, down, top_k, *, renormalises):
    """Return x plus the mixture of `normed` in float64."""
    weights, experts = (normed @ gate.double().t()).softmax(-1).topk(top_k)
    weights = weights / weights.sum(-1, keepdim=True) if renormalises else weights
    total = x.double()
    for token in range(len(x)):
        for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
            inner, up = (gate_up[expert].double() @ normed[token]).chunk(2)
            total[token] += weight * (down[expert].double() @ (torch.nn.functional.silu(inner) * up))
    return total


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("num_experts", "top_k", "hidden", "inner", "renormalises"),
    [(128, 8, 2048, 768, True), (64, 4, 512, 256, False), (32, 2, 320, 192, True), (256, 16, 256, 64, False)],
)
def test_mix_experts(num_tokens, num_experts, top_k, hidden, inner, renormalises):
    from xllm_kernels.cuda.decode import Workspace
    from xllm_kernels.cuda.experts import mix_experts

    x, norm, gate = normal(num_tokens, hidden), normal(hidden), normal(num_experts, hidden, scale=0.1)
    stacks = (normal(num_experts, 2 * inner, hidden, scale=0.05), normal(num_experts, hidden, inner, scale=0.05))
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * norm.double()
    expected = mixture(x, normed, gate, *stacks, top_k, renormalises=renormalises)
    torch.full((2**24,), NAN, dtype=torch.bfloat16, device="cuda")  # poisons what is scratch next
    workspace = Workspace(torch.device("cuda", 0))
    again = x.clone()
    for rows in (x, again):
        mix_experts(rows, norm, 1e-6, gate, stacks, top_k, workspace, renormalises=renormalises)
    assert error_of(x, expected) < 2e-2  # near ties of the router may fall otherwise
    assert torch.equal(again, x)


@pytest.mark.parametrize("num_tokens", [1, 130, 700, 3000])
@pytest.mark.parametrize(
    ("num_experts", "top_k", "hidden", "inner"), [(128, 8, 2048, 768), (32, 2, 512, 256), (64, 4, 256, 384)]
)
def test_products_in_tiles(num_tokens, num_experts, top_k, hidden, inner):
    from xllm_kernels.cuda.experts import expert_tiles, route

    x = normal(num_tokens, hidden)
    gate_up = normal(num_experts, 2 * inner, hidden, scale=0.05)
    down = normal(num_experts, hidden, inner, scale=0.05)
    logits = normal(num_tokens, num_experts, scale=2.0)
    logits[:, 3] += 4  # a busy expert
    logits[:, 5:9] -= 40  # experts that nobody chooses
    routing = route(logits, top_k, renormalises=True)
    torch.full((2**27,), NAN, dtype=torch.bfloat16, device="cuda")  # poison
    out = expert_tiles(x, gate_up, down, routing)
    starts = routing.starts.tolist()
    for expert in range(num_experts):
        rows = slice(starts[expert], starts[expert + 1])
        if rows.start == rows.stop:
            continue
        gate, up = (x[routing.token_of_row[rows].long()].double() @ gate_up[expert].double().t()).chunk(2, -1)
        expected = torch.nn.functional.silu(gate) * up @ down[expert].double().t()
        assert error_of(out[rows], expected) < 1e-2


def test_refusals():
    from xllm_kernels.cuda.decode import Workspace
    from xllm_kernels.cuda.experts import route, run_experts, why_no_mix_experts, why_no_run_experts

    assert why_no_run_experts(128, 2048, 768) is None
    assert why_no_run_experts(128, 2048, 100)
    assert why_no_run_experts(30, 2048, 768)
    assert why_no_mix_experts(4, 128, 8, 4096, 1536) is None
    assert why_no_mix_experts(8, 128, 8, 4096, 1536)
    assert why_no_mix_experts(9, 128, 8, 2048, 768)
    with pytest.raises(ValueError, match="multiple of 32"):
        route(normal(2, 24), 2, renormalises=True)
    routing = route(normal(2, 32), 2, renormalises=True)
    with pytest.raises(ValueError, match="down has size"):
        run_experts(normal(2, 64), normal(32, 128, 64), normal(16, 64, 64), routing, Workspace(torch.device("cuda", 0)))


@pytest.mark.parametrize("num_tokens", [1, 7, 40, 600, 5000])
def test_pairs_of_a_choice_already_made_are_ordered(num_tokens):
    from xllm_kernels.cuda.experts import routing_of

    num_experts, top_k = 160, 6
    experts = torch.rand(num_tokens, num_experts, device="cuda").topk(top_k).indices
    weights = torch.rand(num_tokens, top_k, device="cuda")
    torch.empty(num_tokens * top_k, dtype=torch.int32, device="cuda").fill_(-1)  # poison
    routing = routing_of(weights, experts, num_experts)
    assert torch.equal(routing.experts.long(), experts)
    assert torch.equal(routing.weights, weights)
    flat = experts.flatten()
    assert routing.starts.tolist() == [0, *torch.bincount(flat, minlength=num_experts).cumsum(0).tolist()]
    rows = routing.row_of_pair.long()
    assert sorted(rows.tolist()) == list(range(len(flat)))
    order = torch.empty_like(flat)
    order[rows] = flat
    assert order.tolist() == sorted(flat.tolist())
    assert torch.equal(routing.token_of_row[rows].long(), torch.arange(len(flat), device="cuda") // top_k)


@pytest.mark.parametrize("num_groups", [1, 4])
@pytest.mark.parametrize("num_tokens", [1, 5, 64, 900])
def test_experts_behind_a_router_of_sigmoids_beside_float64(num_tokens, num_groups):
    from support.glm_experts import glm_mlp

    with torch.device("cuda"):
        fast, truth = glm_mlp(torch.bfloat16, num_groups), glm_mlp(torch.float64, num_groups)
    assert fast.can_be_captured
    fast.bias.data.normal_(0, 0.1)
    for name, parameter in fast.named_parameters():
        if name != "bias":
            parameter.data.normal_(0, parameter.shape[1] ** -0.5)
        truth.get_parameter(name).data.copy_(parameter.data)
    x = normal(num_tokens, 512)
    with torch.inference_mode():
        assert error_of(fast(x), truth(x.double())) < 2e-2
