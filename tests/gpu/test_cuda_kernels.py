"""Each CUDA kernel against float64 on the GPU, over random shapes, with outputs poisoned before."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 16


@pytest.fixture
def workspace():
    from xllm_kernels.cuda.decode import shared_workspace

    return shared_workspace(torch.device("cuda", 0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request):
    return request.param


@pytest.fixture
def normal(dtype):
    def make(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device="cuda") * scale).to(dtype)

    return make


@pytest.fixture
def poisoned(dtype):
    def make(*shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")

    return make


def error_of(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.parametrize("size", [64, 128, 576, 4096, 12288])
def test_norms(num_rows, size, normal, poisoned):
    from xllm_kernels.cuda import ops

    x, residual, weight = normal(num_rows, size), normal(num_rows, size), normal(size)
    assert error_of(ops.rms_norm(x, weight, 1e-5, poisoned(num_rows, size)), normed(x, weight, 1e-5)) < 5e-3
    strided = normal(num_rows, 2 * size)[:, :size]
    assert error_of(ops.rms_norm(strided, weight, 1e-5), normed(strided, weight, 1e-5)) < 5e-3
    total = x + residual
    ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert error_of(x, normed(total, weight, 1e-5)) < 5e-3


@pytest.mark.parametrize(("num_rows", "size"), [(1, 8), (5, 3072), (64, 12288), (70_000, 16)])
def test_silu_and_mul(num_rows, size, normal, poisoned):
    from xllm_kernels.cuda import ops

    x = normal(num_rows, 2 * size)
    gate, up = x.double().chunk(2, -1)
    assert error_of(ops.silu_and_mul(x, poisoned(num_rows, size)), torch.nn.functional.silu(gate) * up) < 5e-3


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(32, 8, 128), (9, 3, 64), (14, 2, 64), (4, 4, 32), (16, 16, 80), (6, 2, 72), (4, 4, 36)],
)
def test_rotation_and_cache_writes(heads, kv_heads, head_dim, normal):
    from xllm_kernels.cuda import ops

    num_tokens, num_blocks = 37, 12
    qkv = normal(num_tokens, heads + 2 * kv_heads, head_dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    positions = torch.randint(0, 500, (num_tokens,), device="cuda")
    table = angles(500, head_dim)
    expected = [rotated(part, positions, table) for part in (query, key)]
    ops.rotary_embedding(positions, query, key, table)
    assert error_of(query, expected[0]) < 5e-3
    assert error_of(key, expected[1]) < 5e-3
    caches = [normal(num_blocks, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
    wanted = [cache.clone() for cache in caches]
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device="cuda")[:num_tokens]
    slots[3] = -1
    kept = slots >= 0
    for cache, rows in zip(wanted, (key, value), strict=True):
        cache.flatten(0, 1)[slots[kept]] = rows[kept]
    ops.write_kv(key, value, *caches, slots)
    assert all(torch.equal(cache, other) for cache, other in zip(caches, wanted, strict=True))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64), (5, 1, 128), (96, 8, 128), (130, 2, 64)]
)
@pytest.mark.parametrize("num_tokens", [1, 77])
def test_norm_and_rotation_in_one(num_tokens, heads, kv_heads, head_dim, normal):
    from xllm_kernels.cuda import ops

    qkv = normal(num_tokens, heads + 2 * kv_heads, head_dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    positions = torch.randint(0, 500, (num_tokens,), device="cuda")
    table, q_norm, k_norm = angles(500, head_dim), normal(head_dim), normal(head_dim)
    expected = [rotated(normed(x, w, 1e-6), positions, table) for x, w in ((query, q_norm), (key, k_norm))]
    kept = value.clone()
    ops.norm_and_rotate(positions, query, key, q_norm, k_norm, 1e-6, table)
    assert error_of(query, expected[0]) < 6e-3
    assert error_of(key, expected[1]) < 6e-3
    assert torch.equal(value, kept)


def angles(num_positions: int, rotary_dim: int) -> torch.Tensor:
    steps = torch.arange(0, rotary_dim, 2, device="cuda").float() / rotary_dim
    turns = torch.arange(num_positions, device="cuda").float()[:, None] / 10000**steps
    return torch.cat((turns.cos(), turns.sin()), 1)


def rotated(heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    low, high = heads.double().chunk(2, -1)
    cos, sin = table[positions].double()[:, None].chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (6144, 4096),
        (4096, 12288),
        (1024, 2048),
        (6144, 1024),
        (1024, 3072),
        (1024, 8192),
        (151936, 1024),
        (960, 576),
        (1152, 896),
        (2304, 4096),
        (32, 64),
    ],
)
def test_linear_stream(num_rows, n, k, normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, linear_stream

    x, weight, norm, bias = normal(num_rows, k), normal(n, k, scale=0.02), normal(k), normal(n)
    product = normed(x, norm, 1e-6) @ weight.double().t()
    out = poisoned(num_rows, n)
    linear_stream(x, weight, out=out, epilogue=Epilogue.NONE, norm_weight=norm, bias=bias, eps=1e-6)
    assert error_of(out, product + bias.double()) < 1e-2
    gated = poisoned(num_rows, n // 2)
    linear_stream(x, weight, out=gated, epilogue=Epilogue.SILU_AND_MUL, norm_weight=norm, eps=1e-6)
    gate, up = product.chunk(2, -1)
    assert error_of(gated, torch.nn.functional.silu(gate) * up) < 1e-2
    residual = normal(num_rows, n)
    expected = residual.double() + x.double() @ weight.double().t()
    linear_stream(x, weight, out=residual, epilogue=Epilogue.ADD_RESIDUAL)
    assert error_of(residual, expected) < 1e-2


@pytest.mark.parametrize("num_rows", [1, 9, 16, 17, 32])
@pytest.mark.parametrize(("n", "k"), [(384, 512), (6144, 4096), (4096, 12288), (1088, 192), (24576, 1024)])
def test_linear_batch(num_rows, n, k, normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, linear_batch

    x, weight, bias = normal(num_rows, k), normal(n, k, scale=0.02), normal(n)
    product = x.double() @ weight.double().t()
    out = poisoned(num_rows, n)
    linear_batch(x, weight, out=out, epilogue=Epilogue.NONE, bias=bias)
    assert error_of(out, product + bias.double()) < 1e-2
    gated = poisoned(num_rows, n // 2)
    linear_batch(x, weight, out=gated, epilogue=Epilogue.SILU_AND_MUL)
    gate, up = product.chunk(2, -1)
    assert error_of(gated, torch.nn.functional.silu(gate) * up) < 1e-2
    residual = normal(num_rows, n)
    expected = residual.double() + product
    linear_batch(x, weight, out=residual, epilogue=Epilogue.ADD_RESIDUAL)
    assert error_of(residual, expected) < 1e-2


@pytest.mark.parametrize("num_rows", [33, 64, 65, 100, 128])
@pytest.mark.parametrize(("n", "k"), [(192, 64), (384, 512), (24576, 1024), (28800, 192)])
def test_gates_of_many_rows(num_rows, n, k, normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, linear_batch

    x, weight = normal(num_rows + 3, k), normal(n, k, scale=0.02)
    x[num_rows:] = float("nan")
    gated = poisoned(num_rows + 3, n // 2)
    linear_batch(x[:num_rows], weight, out=gated[:num_rows], epilogue=Epilogue.SILU_AND_MUL)
    gate, up = (x[:num_rows].double() @ weight.double().t()).chunk(2, -1)
    assert error_of(gated[:num_rows], torch.nn.functional.silu(gate) * up) < 1e-2
    assert torch.isnan(gated[num_rows:]).all()


@pytest.mark.parametrize("num_rows", [1, 9, 17, 32])
@pytest.mark.parametrize(("hidden", "inner"), [(1024, 3072), (4096, 12288), (192, 512)])
def test_a_norm_between_two_products(num_rows, hidden, inner, normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, UnfinishedNorm, linear_batch

    x, first, norm_weight = normal(num_rows, inner), normal(hidden, inner, scale=0.02), normal(hidden)
    total, second = normal(num_rows, hidden), normal(2 * inner, hidden, scale=0.02)
    expected = total.double() + x.double() @ first.double().t()
    norm = UnfinishedNorm(total)
    norm.x.fill_(float("nan"))
    norm.squares.fill_(float("nan"))
    linear_batch(x, first, out=total, epilogue=Epilogue.ADD_RESIDUAL, next_norm=(norm_weight, norm))
    assert error_of(total, expected) < 1e-2
    left = norm.x.double() * (64 if norm.x.dtype == torch.float16 else 1)
    assert error_of(left, total.double() * norm_weight.double()) < 5e-3
    product = normed(total, norm_weight, 1e-5) @ second.double().t()
    out, bias = poisoned(num_rows, 2 * inner), normal(2 * inner)
    linear_batch(norm, second, out=out, epilogue=Epilogue.NONE, bias=bias, eps=1e-5)
    assert error_of(out, product + bias.double()) < 1e-2
    gate, up = product.chunk(2, -1)
    gated = poisoned(num_rows, inner)
    linear_batch(norm, second, out=gated, epilogue=Epilogue.SILU_AND_MUL, eps=1e-5)
    assert error_of(gated, torch.nn.functional.silu(gate) * up) < 1e-2


@pytest.mark.parametrize("num_rows", [1, 6, 20])
def test_products_norm_rows_of_any_size(num_rows):
    """float16 ends at 65504: a number of a row times its weight is larger, before the norm has made it small."""
    from xllm_kernels.cuda.decode import Epilogue, UnfinishedNorm, linear_batch, linear_stream

    hidden, n = 1024, 256
    total = torch.randn(num_rows, hidden, device="cuda").half()
    total[:, 7] = 30000.0
    norm_weight = torch.full((hidden,), 8.0, device="cuda").half()
    weight = (torch.randn(n, hidden, device="cuda") * 0.02).half()
    expected = normed(total, norm_weight, 1e-6) @ weight.double().t()
    out = torch.full((num_rows, n), float("nan"), device="cuda").half()
    if num_rows <= 8:
        linear_stream(total, weight, out=out, epilogue=Epilogue.NONE, norm_weight=norm_weight, eps=1e-6)
    else:
        norm, x, identity = UnfinishedNorm(total), total.clone(), torch.zeros(hidden, hidden, device="cuda").half()
        linear_batch(x, identity, out=total, epilogue=Epilogue.ADD_RESIDUAL, next_norm=(norm_weight, norm))
        linear_batch(norm, weight, out=out, epilogue=Epilogue.NONE, eps=1e-6)
    assert error_of(out, expected) < 5e-3


def test_rows_that_products_take():
    from xllm_kernels.cuda.decode import Epilogue, most_gated_rows, most_rows

    assert most_rows(1024, 4096, Epilogue.NONE) == 32
    assert most_rows(1024, 100, Epilogue.NONE) == 0
    tall = 192 * torch.cuda.get_device_properties(0).multi_processor_count  # a tile of rows for each multiprocessor
    assert most_gated_rows(tall, 4096) == most_gated_rows(tall - 192, 64) == 128
    assert most_gated_rows(tall // 2, 4096) == most_gated_rows(tall + 192, 4096) == 0  # many would be idle
    assert most_gated_rows(tall - 64, 4096) == most_gated_rows(tall, 100) == 0


def test_linear_batch_refuses_what_it_cannot_do(normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, UnfinishedNorm, linear_batch, why_no_linear_batch

    assert why_no_linear_batch(100, 64)
    gates = Epilogue.SILU_AND_MUL
    assert why_no_linear_batch(192, 64, 128, gates) is None
    for num_rows, n, epilogue, reason in (
        (33, 192, Epilogue.NONE, "32 rows"),
        (33, 192, Epilogue.ADD_RESIDUAL, "32 rows"),
        (33, 256, gates, "multiple of 192"),
        (129, 192, gates, "1 to 128"),
    ):
        assert why_no_linear_batch(n, 64, num_rows, epilogue)
        out = poisoned(num_rows, n // 2 if epilogue is gates else n)
        with pytest.raises(ValueError, match=reason):
            linear_batch(normal(num_rows, 64), normal(n, 64), out=out, epilogue=epilogue)
    norm = UnfinishedNorm(normal(33, 64))
    with pytest.raises(ValueError, match="norms of 1 to 32 rows"):
        linear_batch(norm, normal(192, 64), out=poisoned(33, 96), epilogue=gates)
    with pytest.raises(ValueError, match="out has size 3"):
        linear_batch(normal(2, 64), normal(64, 64), out=poisoned(3, 64), epilogue=Epilogue.NONE)


def test_linear_stream_refuses_what_it_cannot_do(normal, poisoned):
    from xllm_kernels.cuda.decode import Epilogue, linear_stream, why_no_linear_stream

    assert why_no_linear_stream(4096, 100, Epilogue.NONE)
    assert why_no_linear_stream(4096, 4096, Epilogue.NONE) is None
    with pytest.raises(ValueError, match="1 to 8 rows"):
        linear_stream(
            normal(9, 64), normal(64, 64), out=poisoned(9, 64), epilogue=Epilogue.NONE, norm_weight=normal(64)
        )
    with pytest.raises(ValueError, match="out has size 3"):
        linear_stream(
            normal(2, 64), normal(64, 64), out=poisoned(3, 64), epilogue=Epilogue.NONE, norm_weight=normal(64)
        )
    with pytest.raises(ValueError, match="CUDA device"):
        linear_stream(normal(2, 64).cpu(), normal(64, 64), out=poisoned(2, 64), epilogue=Epilogue.NONE)


LENGTHS = [[1], [17, 0, 64, 65, 1024], [5, 333, 2000, 63], [128] * 40]


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} sequences")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (16, 8, 128), (32, 4, 128), (9, 3, 64), (14, 2, 64), (4, 4, 64)]
)
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "plain"])
def test_decode_attention(lengths, heads, kv_heads, head_dim, is_fused, workspace, normal, poisoned):
    from xllm_kernels.cuda.decode import decode_attention

    width = -(-max(lengths) // BLOCK_SIZE) + 1
    num_rows = len(lengths)
    tables = (torch.randperm(num_rows * width, device="cuda") + 1).view(num_rows, width).int()
    caches = [normal(num_rows * width + 1, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
    qkv = normal(num_rows, heads + 2 * kv_heads, head_dim)
    q_norm, k_norm, table = normal(head_dim), normal(head_dim), angles(max(lengths), head_dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    new_query, new_key = query.double(), key.double()
    if is_fused:
        positions = torch.tensor(lengths, device="cuda").clamp(min=1) - 1
        new_query = rotated(normed(query, q_norm, 1e-6), positions, table)
        new_key = rotated(normed(key, k_norm, 1e-6), positions, table)
    poison_past_the_end(caches, tables, lengths)
    expected = attend(new_query, new_key, value, caches, tables, lengths)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    fusion = {"cos_sin_cache": table, "q_norm": q_norm, "k_norm": k_norm, "eps": 1e-6} if is_fused else {}
    used = seq_lens > 0
    for splits, configuration in ((0, 0), (1, 1), (2, 2), (7, 1), (16, 2), (1, 3), (3, 3)):
        copies = [cache.clone() for cache in caches]
        out = poisoned(num_rows, heads, head_dim)
        decode_attention(
            query, key, value, (copies[0], copies[1]), tables, seq_lens, workspace, out=out, scale=head_dim**-0.5,
            max_seq_len=max(lengths), splits=splits, configuration=configuration, **fusion,
        )  # fmt: skip
        assert error_of(out[used], expected[used]) < 1e-2
        assert torch.isnan(out[~used]).all()
        for row, length in enumerate(lengths):
            if length:
                slot = tables[row, (length - 1) // BLOCK_SIZE], (length - 1) % BLOCK_SIZE
                assert error_of(copies[0][slot], new_key[row]) < 5e-3
                assert torch.equal(copies[1][slot], value[row])
    assert not workspace.counters.any()


def poison_past_the_end(caches: list[torch.Tensor], tables: torch.Tensor, lengths: list[int]) -> None:
    """Put NaN where no row may look: the new token's slot and those after it, and block 0."""
    for cache in caches:
        cache[0] = float("nan")
        for row, length in enumerate(lengths):
            slots = cache[tables[row].long()].flatten(0, 1)
            slots[max(0, length - 1) :] = float("nan")
            cache[tables[row].long()] = slots.view(-1, *cache.shape[1:])


def attend(query, key, value, caches, tables, lengths):
    """float64 attention of the newest tokens: [B, Hq, D]."""
    out = torch.zeros(query.shape, dtype=torch.float64, device="cuda")
    groups = query.shape[1] // key.shape[1]
    for row, length in enumerate(lengths):
        if length:
            keys, values = (cache[tables[row].long()].flatten(0, 1)[: length - 1].double() for cache in caches)
            keys = torch.cat((keys, key[row].double()[None])).repeat_interleave(groups, 1)
            values = torch.cat((values, value[row].double()[None])).repeat_interleave(groups, 1)
            scores = torch.einsum("hd,nhd->hn", query[row].double(), keys) * query.shape[-1] ** -0.5
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize(("num_rows", "size"), [(1, 151936), (3, 264), (64, 32000), (5, 8)])
def test_argmax(num_rows, size, workspace, normal):
    from xllm_kernels.cuda.decode import argmax

    logits = normal(num_rows, size)
    logits[0, size // 2 :] = logits[0].max()  # ties: the first counts
    if num_rows > 2:
        logits[1] = -torch.inf
        logits[2, size - 3] = float("nan")
    ids = torch.full((num_rows,), -1, dtype=torch.int32, device="cuda")
    best = torch.full((num_rows,), -1.0, device="cuda")
    argmax(logits, workspace, token_ids=ids, best=best)
    wide = logits.cpu().float().numpy()
    assert ids.tolist() == wide.argmax(-1).tolist()
    found = torch.from_numpy(wide.max(-1))
    assert torch.equal(best.cpu().nan_to_num(), found.nan_to_num())
    assert not workspace.counters.any()
