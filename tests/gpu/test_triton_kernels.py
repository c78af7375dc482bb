"""The Triton kernels against float64 on the GPU, over random shapes, with outputs poisoned before."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 16
SHAPES = [(32, 8, 128), (9, 3, 64), (14, 2, 64)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def error_of(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()


@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (7, 576), (300, 4096), (3, 12288)])
def test_rows(num_rows, size):
    from xllm_kernels.triton import rows

    x, residual, weight = normal(num_rows, size), normal(num_rows, size), normal(size)
    assert error_of(rows.rms_norm(x, weight, 1e-6, poisoned(num_rows, size)), normed(x, weight)) < 5e-3
    total = x + residual
    assert rows.add_rms_norm(x, residual, weight, 1e-6) is x
    assert torch.equal(residual, total)
    assert error_of(x, normed(total, weight)) < 5e-3
    pairs = normal(num_rows, 2 * size)
    gate, up = pairs.double().chunk(2, -1)
    assert error_of(rows.silu_and_mul(pairs, poisoned(num_rows, size)), torch.nn.functional.silu(gate) * up) < 5e-3


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("has_norms", [True, False])
def test_rotation_and_cache_writes(heads, kv_heads, head_dim, has_norms):
    from xllm_kernels.triton.rows import rotate_and_write

    num_tokens, num_blocks = 37, 12
    qkv = normal(num_tokens, heads + 2 * kv_heads, head_dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    positions = torch.randint(0, 500, (num_tokens,), device="cuda")
    turns = torch.arange(500, device="cuda").float()[:, None] / 10000 ** (
        torch.arange(0, head_dim, 2, device="cuda").float() / head_dim
    )
    table = torch.cat((turns.cos(), turns.sin()), 1)
    norms = {"q_norm": normal(head_dim), "k_norm": normal(head_dim), "eps": 1e-6} if has_norms else {}

    def rotated(x, norm):
        wide = normed(x, norm) if norm is not None else x.double()
        low, high = wide.chunk(2, -1)
        cos, sin = table[positions].double()[:, None].chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    expected = rotated(query, norms.get("q_norm")), rotated(key, norms.get("k_norm"))
    caches = [normal(num_blocks, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
    kept = [cache.clone() for cache in caches]
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device="cuda")[:num_tokens]
    slots[3] = -1
    rotate_and_write(positions, query, key, value, table, (caches[0], caches[1]), slots, **norms)
    assert error_of(query, expected[0]) < 6e-3
    assert error_of(key, expected[1]) < 6e-3
    used = slots >= 0
    for cache, before, rows in zip(caches, kept, (key, value), strict=True):
        before.flatten(0, 1)[slots[used]] = rows[used]
        assert torch.equal(cache, before)


@pytest.mark.parametrize("lengths", [[1], [17, 0, 64, 65, 1024], [5, 333, 3000, 63], [128] * 40])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_decode_attention(lengths, heads, kv_heads, head_dim):
    from xllm_kernels.triton.decode_attention import decode_attention

    width, num_rows = -(-max(lengths) // BLOCK_SIZE) + 1, len(lengths)
    tables = (torch.randperm(num_rows * width, device="cuda") + 1).view(num_rows, width).int()
    caches = [normal(num_rows * width + 1, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
    query = normal(num_rows, heads + 3, head_dim)[:, :heads]
    expected = poisoned(num_rows, heads, head_dim).double()
    for row, length in enumerate(lengths):
        for cache in caches:
            slots = cache[tables[row].long()].flatten(0, 1)
            slots[length:] = float("nan")
            cache[tables[row].long()] = slots.view(-1, BLOCK_SIZE, kv_heads, head_dim)
        if length:
            expected[row] = attend(query[row : row + 1], caches, tables[row], length)[0]
    out, seq_lens = poisoned(num_rows, heads, head_dim), torch.tensor(lengths, dtype=torch.int32, device="cuda")
    decode_attention(
        query, (caches[0], caches[1]), tables, seq_lens, out=out, scale=head_dim**-0.5, max_seq_len=max(lengths)
    )
    used = seq_lens > 0
    assert error_of(out[used], expected[used]) < 1e-2
    assert torch.isnan(out[~used]).all()


def attend(query, caches, table, length):
    """float64 attention of the last tokens of one sequence: [n, Hq, D]."""
    keys, values = (cache[table.long()].flatten(0, 1)[:length].double() for cache in caches)
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,nhd->hqn", query.double(), keys) * query.shape[-1] ** -0.5
    first = length - len(query)
    is_later = torch.arange(length, device="cuda")[None] > first + torch.arange(len(query), device="cuda")[:, None]
    return torch.einsum("hqn,nhd->qhd", scores.masked_fill(is_later, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("is_paged", [True, False])
def test_prefill_attention(heads, kv_heads, head_dim, is_paged):
    from xllm_kernels.triton.prefill_attention import prefill_attention

    new, lengths = [130, 1, 64, 257, 40], [130, 20, 64, 700, 41]
    width = -(-max(lengths) // BLOCK_SIZE) + 1
    tables = (torch.randperm(len(new) * width, device="cuda") + 1).view(len(new), width).int()
    caches = [normal(len(new) * width + 1, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
    query = normal(sum(new), heads + 2, head_dim)[:, :heads]
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    key_starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    expected, gathered = [], [[], []]
    for row, length in enumerate(lengths):
        expected.append(attend(query[int(starts[row]) : int(starts[row + 1])], caches, tables[row], length))
        for cache, rows in zip(caches, gathered, strict=True):
            rows.append(cache[tables[row].long()].flatten(0, 1)[:length])
    keys, values = caches if is_paged else [torch.cat(rows) for rows in gathered]
    out = poisoned(sum(new), heads, head_dim)
    prefill_attention(
        query, keys, values, starts, key_starts, torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        out=out, scale=head_dim**-0.5, max_query_len=max(new), block_tables=tables if is_paged else None,
    )  # fmt: skip
    assert error_of(out, torch.cat(expected)) < 1e-2
