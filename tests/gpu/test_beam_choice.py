"""Choosing beams' tokens on the GPU against torch and the CPU: largest values with ties, totals of children, whole rounds."""

from __future__ import annotations

import pytest
import torch

from xllm_runtime.sampling.beams import DevicePaths, select_beams

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def first_largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row by a stable sort: among equals the first place."""
    best, places = values.float().sort(dim=-1, descending=True, stable=True)
    return places[:, :k], best[:, :k]


@pytest.mark.parametrize(
    ("rows", "size", "k"), [(1, 1, 1), (3, 257, 257), (2, 8192, 256), (1, 262_144, 512), (5, 151_936, 1000)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["random", "few values", "equal", "mostly nothing"])
def test_top_k_takes_the_first_among_equals(rows, size, k, dtype, kind):
    from xllm_kernels.cuda.beams import top_k

    values = torch.randn(rows, size, device="cuda")
    if kind == "few values":
        values = (values * 2).round()
        values[values == 0] = 0.0  # minus zero is smaller than zero here
    elif kind == "equal":
        values.fill_(-1.5)
    elif kind == "mostly nothing":
        values.masked_fill_(torch.rand_like(values) < 0.99, float("-inf"))
    values = values.to(dtype)
    places, best = top_k(values, k)
    expected_places, expected = first_largest(values, k)
    assert torch.equal(best, expected)
    assert torch.equal(places, expected_places)
    assert torch.equal(best, values.float().topk(k).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [8, 1000, 151_936])
def test_normalisers_equal_float64(dtype, vocab_size):
    from xllm_kernels.cuda.beams import log_normaliser

    logits = (torch.randn(33, vocab_size, device="cuda") * 8).to(dtype)
    logits[3, ::2] = float("-inf")
    torch.testing.assert_close(log_normaliser(logits).double(), logits.double().logsumexp(-1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("has_paths", [True, False])
@pytest.mark.parametrize("num_beams", [1, 7, 512])
def test_rounds_equal_those_of_the_cpu(has_paths: bool, num_beams: int):
    num_searches, per_search, vocab_size, num_nodes = 3, 9, 512, 40
    logits = (torch.randn(num_searches * per_search, vocab_size) * 2).round() / 2  # full of ties
    scores = -torch.randint(0, 4, (num_searches, per_search)).float()
    nodes = torch.randint(-1, num_nodes, (num_searches, per_search))
    counts = torch.randint(0, 12, (num_nodes,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    tokens = torch.randint(0, vocab_size, (int(starts[-1]),))
    widths = torch.tensor([num_beams, max(num_beams // 2, 1), 1])
    if not has_paths:
        nodes = nodes.clamp(min=0)
    found = []
    for device in ("cpu", "cuda"):
        paths = DevicePaths(starts.to(device), tokens.to(device), int(counts.max())) if has_paths else None
        given = (tensor.to(device) for tensor in (logits.bfloat16(), scores, nodes))
        found.append(select_beams(*given, paths, widths.to(device), num_beams))
    for name in ("token_ids", "parents", "nodes"):
        assert (getattr(found[0], name) == getattr(found[1], name).cpu()).float().mean() > 0.99, name
    torch.testing.assert_close(found[1].scores.cpu(), found[0].scores, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[1].logprobs.cpu(), found[0].logprobs, rtol=1e-5, atol=1e-4)
