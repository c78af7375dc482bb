"""Times each operation of xllm-kernels beside torch on the CPU, and prints one table.

    python benchmarks/kernels.py [--threads 2] [--dtype bfloat16] [--only paged_attention]

Medians over repeated calls; both sides use the same number of threads. torch's attention is `scaled_dot_product_attention`
on keys and values gathered beforehand into contiguous tensors: the gathering itself is not counted. Rates are of the bytes
that the operation must touch (GB/s), for prefill of its multiplications and additions (GFLOP/s).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from xllm_kernels import available_backends, ops, set_num_threads


@dataclass
class Case:
    """One line of the table: the same work done by us and by torch, and how much of it there is."""

    op: str
    shape: str
    ours: Callable[[], object]
    torch: Callable[[], object]
    amount: float
    unit: str
    """"GB" or "GFLOP"; `amount` is in billions of bytes or operations."""


def row_cases(dtype: torch.dtype) -> Iterator[Case]:
    """The operations that treat every token alone, at the sizes of a 135M and of an 8B model."""
    for num_tokens, hidden, inner in ((1, 576, 1536), (32, 576, 1536), (1, 4096, 14336), (512, 4096, 14336)):
        x, residual = torch.randn(num_tokens, hidden).to(dtype), torch.randn(num_tokens, hidden).to(dtype)
        weight, out = torch.randn(hidden).to(dtype), torch.empty(num_tokens, hidden, dtype=dtype)
        gate_up = torch.randn(num_tokens, 2 * inner).to(dtype)
        activated = torch.empty(num_tokens, inner, dtype=dtype)
        size = x.element_size() / 1e9
        shape = f"{num_tokens}x{hidden}"
        yield Case(
            "rms_norm",
            shape,
            lambda x=x, w=weight, o=out: ops.rms_norm(x, w, 1e-6, o),
            lambda x=x, w=weight, h=hidden: F.rms_norm(x, (h,), w, 1e-6),
            2 * x.numel() * size,
            "GB",
        )
        yield Case(
            "add_rms_norm",
            shape,
            lambda x=x, r=residual, w=weight: ops.add_rms_norm(x, r, w, 1e-6),
            lambda x=x, r=residual, w=weight, h=hidden: x.copy_(F.rms_norm(r.add_(x), (h,), w, 1e-6)),
            4 * x.numel() * size,
            "GB",
        )
        yield Case(
            "silu_and_mul",
            f"{num_tokens}x{2 * inner}",
            lambda g=gate_up, o=activated: ops.silu_and_mul(g, o),
            lambda g=gate_up, i=inner: F.silu(g[:, :i]) * g[:, i:],
            3 * activated.numel() * size,
            "GB",
        )


def rotate_by_torch(query: torch.Tensor, key: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """The rotation as model code writes it, with cosines and sines [T, 1, D] at hand."""
    for heads in (query, key):
        first, second = heads.chunk(2, dim=-1)
        heads.copy_(heads * cosines + torch.cat((-second, first), dim=-1) * sines)


def rotary_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Rotation at once for all heads of 1, 32 and 512 tokens."""
    for num_tokens, num_heads, num_kv_heads, head_dim in ((1, 9, 3, 64), (32, 9, 3, 64), (512, 32, 8, 128)):
        query = torch.randn(num_tokens, num_heads, head_dim).to(dtype)
        key = torch.randn(num_tokens, num_kv_heads, head_dim).to(dtype)
        angles = torch.rand(4096, head_dim // 2)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1)
        positions = torch.randint(4096, (num_tokens,))
        cosines = angles.cos()[positions].repeat(1, 2)[:, None].to(dtype)
        sines = angles.sin()[positions].repeat(1, 2)[:, None].to(dtype)
        yield Case(
            "rotary_embedding",
            f"{num_tokens}x({num_heads}+{num_kv_heads})x{head_dim}",
            lambda p=positions, q=query, k=key, t=table: ops.rotary_embedding(p, q, k, t),
            lambda q=query, k=key, c=cosines, s=sines: rotate_by_torch(q, k, c, s),
            2 * (query.numel() + key.numel()) * query.element_size() / 1e9,
            "GB",
        )


def attention_case(dtype: torch.dtype, num_seqs: int, rows: int, context: int, heads: tuple[int, int, int]) -> Case:
    """`rows` new tokens of each of `num_seqs` sequences that have `context` tokens with them; shuffled blocks of 16."""
    num_heads, num_kv_heads, head_dim = heads
    blocks_each = -(-context // 16)
    num_blocks = num_seqs * blocks_each
    cache = [torch.randn(num_blocks, 16, num_kv_heads, head_dim).to(dtype) for _ in range(2)]
    tables = torch.randperm(num_blocks).to(torch.int32).reshape(num_seqs, blocks_each)
    query = torch.randn(num_seqs * rows, num_heads, head_dim).to(dtype)
    query_start = torch.arange(num_seqs + 1, dtype=torch.int32) * rows
    seq_lens = torch.full((num_seqs,), context, dtype=torch.int32)
    out = torch.empty_like(query)
    gathered = [
        c[tables.long()].reshape(num_seqs, -1, num_kv_heads, head_dim)[:, :context].transpose(1, 2).contiguous()
        for c in cache
    ]
    dense_query = query.reshape(num_seqs, rows, num_heads, head_dim).transpose(1, 2)
    scale = head_dim**-0.5
    mask = torch.ones(rows, context, dtype=torch.bool).tril(context - rows) if rows not in (1, context) else None
    seen = num_seqs * (rows * (context - rows) + rows * (rows + 1) // 2)
    is_decode = rows == 1
    amount = (
        2 * num_seqs * context * num_kv_heads * head_dim * query.element_size()
        if is_decode
        else (4 * seen * num_heads * head_dim)
    )
    return Case(
        "paged_attention",
        f"{num_seqs} seqs x {rows} of {context}, {num_heads}/{num_kv_heads}x{head_dim}",
        lambda: ops.paged_attention(query, cache[0], cache[1], tables, query_start, seq_lens, scale, out=out),
        lambda: F.scaled_dot_product_attention(
            dense_query, *gathered, attn_mask=mask, is_causal=rows == context, scale=scale, enable_gqa=True
        ),
        amount / 1e9,
        "GB" if is_decode else "GFLOP",
    )


def attention_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Decodes of short and long contexts, whole prompts, and a chunk late in a prompt."""
    small, large, no_group = (9, 3, 64), (32, 8, 128), (16, 16, 128)
    for num_seqs, rows, context, heads in (
        (1, 1, 512, small),
        (32, 1, 512, small),
        (1, 1, 8192, small),
        (8, 1, 2048, large),
        (1, 1, 16384, large),
        (8, 1, 1024, no_group),
        (1, 512, 512, small),
        (1, 512, 512, large),
        (1, 128, 2048, small),
    ):
        yield attention_case(dtype, num_seqs, rows, context, heads)


def write_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Scattered writes of 1 and of 512 tokens."""
    for num_tokens, num_kv_heads, head_dim in ((1, 3, 64), (32, 3, 64), (512, 8, 128)):
        key = torch.randn(num_tokens, num_kv_heads, head_dim).to(dtype)
        caches = [torch.zeros(256, 16, num_kv_heads, head_dim, dtype=dtype) for _ in range(2)]
        slots = torch.randperm(256 * 16)[:num_tokens]
        flat = [c.view(-1, num_kv_heads, head_dim) for c in caches]
        yield Case(
            "write_kv",
            f"{num_tokens}x{num_kv_heads}x{head_dim}",
            lambda k=key, c=caches, s=slots: ops.write_kv(k, k, c[0], c[1], s),
            lambda k=key, f=flat, s=slots: (f[0].index_copy_(0, s, k), f[1].index_copy_(0, s, k)),
            4 * key.numel() * key.element_size() / 1e9,
            "GB",
        )


def median_us(function: Callable[[], object], seconds: float) -> float:
    """Median time of one call in microseconds; calls shorter than 20 us are timed in groups."""
    function()
    begin = time.perf_counter()
    function()
    group = max(1, int(50e-6 / max(time.perf_counter() - begin, 1e-9)))
    times = []
    stop = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        begin = time.perf_counter()
        for _ in range(group):
            function()
        times.append((time.perf_counter() - begin) / group)
    return statistics.median(times) * 1e6


def main() -> None:
    """Parse the options, run the cases, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--only", default="", help="an operation's name")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each figure")
    options = parser.parse_args()
    set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    print(f"{available_backends()['cpu']}, {options.dtype}, {options.threads} threads, torch {torch.__version__}")
    print(f"{'op':18}{'shape':40}{'ours us':>10}{'torch us':>10}{'ratio':>7}{'ours':>8} {'torch':>7}")
    for cases in (row_cases, rotary_cases, write_cases, attention_cases):
        for case in cases(dtype):
            if options.only and case.op != options.only:
                continue
            ours, theirs = median_us(case.ours, options.seconds), median_us(case.torch, options.seconds)
            rates = [case.amount / us * 1e6 for us in (ours, theirs)]
            print(
                f"{case.op:18}{case.shape:40}{ours:10.1f}{theirs:10.1f}{theirs / ours:7.2f}"
                f"{rates[0]:8.1f} {rates[1]:7.1f} {case.unit}/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
