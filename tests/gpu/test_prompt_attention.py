"""The Hopper kernel for prompts against float64, over ragged lengths, with outputs and all keys past the ends poisoned."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
SHAPES = [(32, 8, 128), (9, 3, 64), (28, 4, 128), (4, 4, 80), (3, 1, 72)]
NEW, LENGTHS = [130, 1, 64, 257, 40, 128], [130, 20, 64, 1100, 41, 384]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request):
    return request.param


@pytest.fixture
def normal(dtype):
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(dtype)

    return make


def error_of(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def starts_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def integers(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def attend(query, keys, values, *, is_causal):
    """float64: [n, Hq, D] and logsumexp [Hq, n] of queries that are the last of their sequence."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("qhd,nhd->hqn", query.double(), keys) * query.shape[-1] ** -0.5
    if is_causal:
        places = torch.arange(len(keys), device="cuda")
        scores = scores.masked_fill(places[None] > places[len(keys) - len(query) :, None], -torch.inf)
    return torch.einsum("hqn,nhd->qhd", scores.softmax(-1), values), scores.logsumexp(-1)


def random_tables(block_size: int) -> torch.Tensor:
    """int32 [S, W]: blocks in random order, none of them block 0."""
    width = -(-max(LENGTHS) // block_size) + 1
    return (torch.randperm(len(LENGTHS) * width, device="cuda") + 1).view(len(LENGTHS), width).int()


def paged(keys: list[torch.Tensor], tables: torch.Tensor, block_size: int) -> torch.Tensor:
    """A cache; everything that no sequence owns is NaN."""
    cache = torch.full((tables.numel() + 1, block_size, *keys[0].shape[1:]), float("nan"), device="cuda").to(
        keys[0].dtype
    )
    for table, rows in zip(tables.tolist(), keys, strict=True):
        for first in range(0, len(rows), block_size):
            part = rows[first : first + block_size]
            cache[table[first // block_size], : len(part)] = part
    return cache


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("block_size", [0, 16, 24, 128])
def test_equals_float64(heads, kv_heads, head_dim, is_causal, block_size, normal):
    from xllm_kernels.cuda.prompts import prompt_attention

    query = normal(sum(NEW), heads + 2, head_dim)[:, :heads]
    keys, values = ([normal(length, kv_heads, head_dim) for length in LENGTHS] for _ in "kv")
    expected, lse = zip(
        *(
            attend(rows, key, value, is_causal=is_causal)
            for rows, key, value in zip(query.split(NEW), keys, values, strict=True)
        ),
        strict=True,
    )
    given = {"key_start": starts_of(LENGTHS)}
    stacked = [torch.cat(rows) for rows in (keys, values)]
    if block_size:
        tables = random_tables(block_size)
        stacked, given = [paged(rows, tables, block_size) for rows in (keys, values)], {"block_tables": tables}
    out = torch.full((1, sum(NEW), heads, head_dim), float("nan"), device="cuda").to(query.dtype)
    out_lse = torch.full((1, heads, sum(NEW)), float("nan"), device="cuda")
    prompt_attention(
        query, *stacked, starts_of(NEW), integers(LENGTHS), out=out, scale=head_dim**-0.5, max_query_len=max(NEW), is_causal=is_causal,
        lse=out_lse, **given,
    )  # fmt: skip
    assert error_of(out[0], torch.cat(expected)) < 1e-2
    assert (out_lse[0] - torch.cat(lse, 1)).abs().max() < 1e-2


@pytest.mark.parametrize("splits", [2, 5, 16])
def test_parts_join_to_the_whole(splits, normal):
    from xllm_kernels.cuda.prompts import prompt_attention

    heads, kv_heads, head_dim, lengths = 6, 2, 128, [1000, 1, 129]
    query, rows = normal(3 * 200, heads, head_dim), [200, 200, 200]
    keys, values = ([normal(length, kv_heads, head_dim) for length in lengths] for _ in "kv")
    expected = torch.cat(
        [attend(*three, is_causal=False)[0] for three in zip(query.split(rows), keys, values, strict=True)]
    )
    out = torch.full((splits, len(query), heads, head_dim), float("nan"), device="cuda").to(query.dtype)
    lse = torch.full((splits, heads, len(query)), float("nan"), device="cuda")
    prompt_attention(
        query, torch.cat(keys), torch.cat(values), starts_of(rows), integers(lengths), key_start=starts_of(lengths), out=out, lse=lse,
        scale=head_dim**-0.5, max_query_len=200, is_causal=False,
    )  # fmt: skip
    assert not lse.isnan().any()
    weights = lse.masked_fill(lse == torch.inf, -torch.inf).softmax(0).transpose(1, 2)[..., None]
    joined = torch.where(weights > 0, out.double() * weights, 0.0).sum(0)
    assert error_of(joined, expected) < 1e-2


def test_neighbours_do_not_matter(normal):
    from xllm_kernels.cuda.prompts import prompt_attention

    query, key, value = (normal(300, 4, 128) for _ in range(3))
    for rows in (key, value, query):
        rows[100:200] = float("nan")
    lengths, out = [100, 100, 100], torch.full((300, 4, 128), float("nan"), device="cuda").to(query.dtype)
    starts = starts_of(lengths)
    prompt_attention(
        query, key, value, starts, integers(lengths), key_start=starts, out=out, scale=0.1, max_query_len=100
    )
    assert not out[:100].isnan().any()
    assert not out[200:].isnan().any()
