"""Decode attention over a cache of 8-bit floats on the GPU against float64 over the numbers that the cache holds."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
BLOCK_SIZE, SCALES = 16, (0.5, 0.02)
LENGTHS = [[1], [700], [5, 0, 16, 17, 64, 65, 130], [1, 300, 2049, 0, 63]]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def angles(length: int, size: int) -> torch.Tensor:
    steps = torch.arange(length, device="cuda")[:, None] * 10000.0 ** -(torch.arange(0, size, 2, device="cuda") / size)
    return torch.cat((steps.cos(), steps.sin()), -1).float()


def placed(heads: torch.Tensor, norm: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[B, H, D] normalised and rotated, in float64."""
    x = heads.double()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * norm.double()
    cosine, sine = (part[:, None] for part in table[positions].double().chunk(2, -1))
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (32, 4, 128), (9, 3, 64), (4, 4, 64)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} sequences")
def test_against_what_the_cache_holds(lengths, heads, kv_heads, head_dim, dtype):
    from xllm_kernels.cuda.decode import shared_workspace
    from xllm_kernels.cuda.float8_attention import float8_attention

    workspace = shared_workspace(torch.device("cuda", 0))
    width, num_rows = -(-max(lengths) // BLOCK_SIZE) + 1, len(lengths)
    tables = (torch.randperm(num_rows * width, device="cuda") + 1).view(num_rows, width).int()
    sizes = (num_rows * width + 1, BLOCK_SIZE, kv_heads, head_dim)
    caches = [(torch.randn(sizes, device="cuda") * 2).to(torch.float8_e4m3fn) for _ in SCALES]
    for row, length in enumerate(lengths):  # NaN where no row may look: the new token's slot and those after it
        for cache in caches:
            slots = cache.view(torch.uint8)[tables[row].long()].flatten(0, 1)
            slots[max(0, length - 1) :] = 0x7F
            cache.view(torch.uint8)[tables[row].long()] = slots.view(-1, *sizes[1:])
    qkv = torch.randn(num_rows, heads + 2 * kv_heads, head_dim, device="cuda").to(dtype)
    norms = [(torch.randn(head_dim, device="cuda") * 0.3 + 1).to(dtype) for _ in "qk"]
    table = angles(max(lengths), head_dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    positions = torch.tensor(lengths, device="cuda").clamp(min=1) - 1
    new_query = placed(query, norms[0], positions, table).to(dtype).double()
    new_key = placed(key, norms[1], positions, table)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    for splits in (0, 1, 2, 7):
        copies = [cache.clone() for cache in caches]
        out = torch.full((num_rows, heads, head_dim), float("nan"), device="cuda", dtype=dtype)
        float8_attention(
            query, key, value, (copies[0], copies[1]), tables, seq_lens, workspace, out=out, scale=head_dim**-0.5,
            max_seq_len=max(lengths), kv_scales=SCALES, cos_sin_cache=table, q_norm=norms[0], k_norm=norms[1], eps=1e-6, splits=splits,
        )  # fmt: skip
        for row, length in enumerate(lengths):
            if not length:
                assert torch.isnan(out[row]).all()
                continue
            held = [
                copy[tables[row].long()].flatten(0, 1)[:length].double() * s
                for copy, s in zip(copies, SCALES, strict=True)
            ]
            assert error_of(held[0][-1], new_key[row]) < 5e-2
            assert error_of(held[1][-1], (value[row].float() / SCALES[1]).clamp(-448, 448) * SCALES[1]) < 5e-2
            keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in held)
            weights = (torch.einsum("hd,nhd->hn", new_query[row], keys) * head_dim**-0.5).softmax(-1)
            assert error_of(out[row], torch.einsum("hn,nhd->hd", weights, values)) < 1e-2, (row, splits)
    assert not workspace.counters.any()
