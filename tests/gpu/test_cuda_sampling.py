"""The kernel that draws tokens, against the sampler on arrays and against float64 distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.decode_steps import greedy_rows
from xllm_runtime.sampling.arrays.sampler import sample as sample_arrays
from xllm_runtime.sampling.draw_cuda import OptionsUpload, draw_tokens

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def options_of(num_rows: int, **options):
    rows = greedy_rows(num_rows)
    rows.seed = np.random.default_rng(0).integers(0, 2**63, num_rows).astype(np.uint64)
    rows.step = np.arange(num_rows, dtype=np.int64)
    for name, value in options.items():
        getattr(rows, name)[:] = value
    return rows


def drawn(logits: torch.Tensor, rows, *, with_logprobs: bool = False):
    wide = logits.float()
    best, best_ids = wide.max(-1)
    token_ids = torch.full((len(logits),), -7, dtype=torch.int32, device="cuda")
    logprobs = torch.full((len(logits),), float("nan"), device="cuda") if with_logprobs else None
    options = OptionsUpload(len(logits), logits.device).send(rows)
    draw_tokens(logits, best_ids.int(), best, options, token_ids, logprobs)
    return (token_ids.cpu().numpy(), logprobs.cpu()) if logprobs is not None else token_ids.cpu().numpy()


FILTERS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "top-k": {"temperature": 1.0, "top_k": 40},
    "one": {"temperature": 1.0, "top_k": 1},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "wide top-p": {"temperature": 1.5, "top_p": 0.999},
    "both": {"temperature": 0.9, "top_k": 50, "top_p": 0.8},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
    "all": {"temperature": 1.1, "top_k": 200, "top_p": 0.95, "min_p": 0.01},
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(("num_rows", "size"), [(64, 151936), (300, 1000), (5, 264)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tokens_are_those_of_the_sampler_on_arrays(name, num_rows, size, dtype):
    logits = (torch.randn(num_rows, size, device="cuda") * 3).to(dtype)
    rows = options_of(num_rows, **FILTERS[name])
    expected = sample_arrays(logits.float().cpu().numpy(), rows).token_ids
    found = drawn(logits, rows)
    assert ((found >= 0) & (found < size)).all()
    assert (found == expected).mean() >= 0.99  # sums round otherwise: a number may fall on the other side of a border
    assert (drawn(logits, rows) == found).all()
    assert drawn(logits[2:3].contiguous(), take(rows, slice(2, 3)))[0] == found[2]


def take(rows, index):
    taken = options_of(1)
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "step"):
        setattr(taken, name, getattr(rows, name)[index])
    return taken


def test_equals_are_kept_by_rising_id():
    logits = torch.zeros(2000, 512, device="cuda", dtype=torch.bfloat16)
    logits[:, 100:] = -5
    found = drawn(logits, options_of(2000, temperature=1.0, top_k=7))
    assert set(found.tolist()) == set(range(7))
    found = drawn(logits, options_of(2000, temperature=1.0, top_p=0.5))
    expected = np.exp(0.0) * 100 + np.exp(-5.0) * 412
    kept = int(np.ceil(0.5 * expected - 1e-3))
    assert found.max() < kept
    assert len(set(found.tolist())) >= kept - 2


def test_frequencies_follow_the_distribution():
    row = torch.randn(64, device="cuda") * 1.5
    logits = row.repeat(20000, 1).contiguous()
    counts = np.bincount(drawn(logits, options_of(20000, temperature=0.7)), minlength=64)
    expected = (row.double() / 0.7).softmax(-1).cpu().numpy() * 20000
    likely = expected > 5
    assert ((counts - expected)[likely] ** 2 / expected[likely]).sum() < 2.0 * likely.sum()


def test_greedy_and_broken_rows_beside_drawn_ones():
    logits = torch.randn(4, 1024, device="cuda").bfloat16()
    logits[1, 5] = float("nan")
    logits[2] = -torch.inf
    rows = options_of(4, temperature=[0.0, 1.0, 1.0, 1.0])
    found = drawn(logits, rows)
    assert found[0] == int(logits[0].float().argmax())
    assert found[1:3].tolist() == [-1, -1]
    assert 0 <= found[3] < 1024


def test_log_probabilities_are_the_models_own():
    logits = (torch.randn(9, 32000, device="cuda") * 2).bfloat16()
    found, logprobs = drawn(logits, options_of(9, temperature=0.5, top_k=10), with_logprobs=True)
    expected = logits.double().log_softmax(-1).cpu().gather(1, torch.from_numpy(found).long()[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-4, rtol=0)


def test_placeholders():
    from xllm_kernels.cuda.sampling import replace_placeholders

    token_ids = torch.tensor([5, -1, -3, -2, 9, -100], dtype=torch.int32, device="cuda")
    replace_placeholders(token_ids, torch.tensor([70, -1, 72], dtype=torch.int32, device="cuda"))
    assert token_ids.tolist() == [5, 70, 72, 0, 9, 0]
