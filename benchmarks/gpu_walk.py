"""Small calls of every CUDA kernel of xllm-kernels in every configuration, with random numbers: something to watch under a sanitizer.

Sizes are the least that reach each configuration; row counts and lengths are random. Nothing is compared: tests do that. Knows nothing
of sanitizers.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from xllm_kernels import _C_cuda
from xllm_kernels.cuda import beams, decode, experts, float8_attention, ops, prompts, quantised, sampling
from xllm_kernels.quantised_matrix import QuantisedMatrix, from_4_bits, from_8_bits

EPS, BLOCK_SIZE = 1e-6, 16
LONG_RING = 3
"""Of attention over few sequences; else for more pairs of sequences and kv heads than a sanitizer has time for."""
NONE, ADD_RESIDUAL, SILU_AND_MUL = decode.Epilogue.NONE, decode.Epilogue.ADD_RESIDUAL, decode.Epilogue.SILU_AND_MUL


class Numbers:
    """Random tensors of one type on the GPU."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.dtype, self.device, self.random = dtype, torch.device("cuda", 0), random.Random(seed)
        self.workspace = decode.shared_workspace(self.device)

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Return numbers around 0."""
        return (torch.randn(shape, device=self.device) * scale).to(self.dtype)

    def unset(self, *shape: int) -> torch.Tensor:
        """Return memory that nobody has set."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def integers(self, values: list[int]) -> torch.Tensor:
        """Return int32 numbers."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def starts(self, lengths: list[int]) -> torch.Tensor:
        """Return where rows of such lengths begin and end, int32."""
        return self.integers([sum(lengths[:i]) for i in range(len(lengths) + 1)])

    def tables(self, num_rows: int, width: int) -> torch.Tensor:
        """Return block tables int32 [num_rows, width], blocks in random order."""
        return torch.randperm(num_rows * width, device=self.device).view(num_rows, width).int()

    def angles(self, num_positions: int, size: int) -> torch.Tensor:
        """Return a rotary table float32 [num_positions, size]."""
        return torch.rand(num_positions, size, device=self.device)


def rows(numbers: Numbers) -> None:
    """What is done to rows between products."""
    for count, size in ((7, 64), (3, 576), (2, 4096), (2, 6144), (1, 12288)):
        x, weight = numbers.normal(count, size), numbers.normal(size)
        ops.rms_norm(x, weight, EPS)
        ops.add_rms_norm(x, numbers.normal(count, size), weight, EPS)
    ops.silu_and_mul(numbers.normal(5, 2 * 3072))
    for heads, kv_heads, head_dim in ((4, 2, 128), (9, 3, 64), (6, 2, 72), (3, 3, 36), (3, 1, 4)):
        query, key, value = numbers.normal(11, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), 1)
        positions, table = torch.randint(0, 50, (11,), device=numbers.device), numbers.angles(50, head_dim)
        ops.rotary_embedding(positions, query, key, table)
        if head_dim in (64, 128):
            norm = numbers.normal(head_dim)
            ops.norm_and_rotate(positions, query, key, norm, norm, EPS, table)
        if kv_heads * head_dim % 8 == 0:
            caches = [numbers.normal(2, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
            ops.write_kv(key, value, *caches, torch.randperm(2 * BLOCK_SIZE, device=numbers.device)[:11] - 1)


def streamed_products(numbers: Numbers) -> None:
    """`linear_stream` in each of its shapes."""
    tall, row = numbers.normal(64, 8192), numbers.normal(1, 8192)  # K in two slices
    decode.linear_stream(row, tall, out=numbers.normal(1, 64), epilogue=ADD_RESIDUAL)
    for n, k in ((384, 512), (64, 1088), (1024, 2560), (4096, 256), (16896, 1024)):
        weight, norm, bias = numbers.normal(n, k, scale=0.02), numbers.normal(k), numbers.normal(n)
        for count in (1,) if n > 16384 else (1, numbers.random.randint(2, decode.LINEAR_STREAM_MAX_BATCH)):
            x, given = numbers.normal(count, k), {"norm_weight": norm, "eps": EPS}
            out = numbers.unset(count, n)
            decode.linear_stream(x, weight, out=out, epilogue=NONE, bias=bias, **given)
            decode.linear_stream(x, weight, out=numbers.unset(count, n // 2), epilogue=SILU_AND_MUL, **given)
            decode.linear_stream(x, weight, out=out, epilogue=ADD_RESIDUAL)


def batched_products(numbers: Numbers) -> None:
    """`linear_batch`, and norms that are left from one product to the next."""
    for n, k in ((384, 512), (4096, 256), (12288, 128), (2176, 4608), (192, 4096)):
        weight, bias = numbers.normal(n, k, scale=0.02), numbers.normal(n)
        for most in (16, 32):
            count = numbers.random.randint(most - 7, most)
            x, out = numbers.normal(count, k), numbers.unset(count, n)
            decode.linear_batch(x, weight, out=out, epilogue=NONE, bias=bias)
            decode.linear_batch(x, weight, out=out, epilogue=ADD_RESIDUAL)
            decode.linear_batch(x, weight, out=numbers.unset(count, n // 2), epilogue=SILU_AND_MUL)
    gates = numbers.normal(17024, 1024, scale=0.02)  # the least that has more tiles than places and uses a ring again
    for count in (16, 32):
        x, out = numbers.normal(count, 1024), numbers.unset(count, 8512)
        decode.linear_batch(x, gates, out=out, epilogue=SILU_AND_MUL)
    gates = numbers.normal(384, 1024, scale=0.02)  # more steps than stages, again
    for most in (64, 128):
        count = numbers.random.randint(most - 31, most)
        x, out = numbers.normal(count, 1024), numbers.unset(count, 192)
        decode.linear_batch(x, gates, out=out, epilogue=SILU_AND_MUL)
    for count in (9, 17, 32):
        x, down, up = numbers.normal(count, 512), numbers.normal(192, 512), numbers.normal(1024, 192)
        total, norm = numbers.normal(count, 192), decode.UnfinishedNorm(numbers.unset(count, 192))
        following = (numbers.normal(192), norm)
        decode.linear_batch(x, down, out=total, epilogue=ADD_RESIDUAL, next_norm=following)
        decode.linear_batch(norm, up, out=numbers.unset(count, 1024), epilogue=NONE, eps=EPS)
        decode.linear_batch(norm, up, out=numbers.unset(count, 512), epilogue=SILU_AND_MUL, eps=EPS)


def random_matrix(numbers: Numbers, kind: str, n: int, k: int) -> QuantisedMatrix:
    """Return a quantised matrix [n, k]."""
    scales = torch.rand(n, device=numbers.device) * 1e-3
    if kind == "int8":
        return from_8_bits(torch.randint(-128, 128, (n, k), device=numbers.device).to(torch.int8), scales)
    if kind == "int4":
        values = torch.randint(0, 16, (n, k), device=numbers.device).to(torch.uint8)
        zeros = torch.randint(0, 17, (n, k // 128), device=numbers.device)
        return from_4_bits(values, torch.rand(n, k // 128, device=numbers.device), zeros)
    values = torch.randn(n, k, device=numbers.device).to(torch.float8_e4m3fn)
    if kind == "float8":
        return from_8_bits(values, scales)
    return from_8_bits(values, block_scales=torch.rand(-(-n // 128), -(-k // 128), device=numbers.device))


def quantised_products(numbers: Numbers) -> None:
    """`quantised_stream`: straight to registers for few rows, by a ring for more."""
    for kind in ("float8", "float8 in blocks", "int8", "int4"):
        for n, k in ((192, 1152), (96, 896)):
            matrix, bias = random_matrix(numbers, kind, n, k), numbers.normal(n)
            for count in (1, numbers.random.randint(2, 4), numbers.random.randint(5, 8), numbers.random.randint(9, 32)):
                norm = numbers.normal(k) if quantised.quantised_stream_norms(count, k) else None
                x, given = numbers.normal(count, k), {"norm_weight": norm, "eps": EPS}
                space, out = numbers.workspace, numbers.unset(count, n)
                quantised.quantised_stream(x, matrix, space, out=out, bias=bias, **given)
                quantised.quantised_stream(x, matrix, space, out=out, epilogue=ADD_RESIDUAL, **given)
                gated = numbers.unset(count, n // 2)
                quantised.quantised_stream(x, matrix, space, out=gated, epilogue=SILU_AND_MUL, **given)


QUANTISED_CONFIGURATIONS = (
    ((1, 3, 8), (2, 4), False),
    ((2,), (101, 201), True),
    ((7, 13, 29), (1201, 1401, 1211, 1411), True),
)
"""(rows, configurations, has a ring): boxes ahead of registers; tiles with x resident; with x in the ring, K whole or in two."""


def quantised_shapes(numbers: Numbers) -> None:
    """`quantised_stream` in the configurations that no small size would choose, over rings that are used again."""
    for kind in ("float8", "int8", "int4"):
        for counts, configurations, has_ring in QUANTISED_CONFIGURATIONS:
            k = 8192 if has_ring and kind == "int4" else 4096
            matrix = random_matrix(numbers, kind, 192, k)
            for count, configuration in itertools.product(counts, configurations):
                x, out, gated = (numbers.normal(count, size) for size in (k, 192, 96))
                given = (x, matrix, numbers.workspace)
                quantised.quantised_stream(*given, out=out, epilogue=ADD_RESIDUAL, configuration=configuration)
                quantised.quantised_stream(*given, out=gated, epilogue=SILU_AND_MUL, configuration=configuration)


def single_tokens(numbers: Numbers) -> None:
    """Attention of a decode step, over caches of 16 and of 8 bits."""
    for lengths in ([5], [200] * 3, [1, 0, 64, 130, 17], [33] * 40):
        for heads, kv_heads, head_dim in ((8, 2, 128), (9, 3, 64)):
            count, width = len(lengths), -(-max(lengths) // BLOCK_SIZE)
            query, key, value = numbers.normal(count, heads + 2 * kv_heads, head_dim).split(
                (heads, kv_heads, kv_heads), 1
            )
            caches = [numbers.normal(count * width, BLOCK_SIZE, kv_heads, head_dim) for _ in "kv"]
            tables, seq_lens, norm = numbers.tables(count, width), numbers.integers(lengths), numbers.normal(head_dim)
            fused = {"cos_sin_cache": numbers.angles(256, head_dim), "q_norm": norm, "k_norm": norm, "eps": EPS}
            sizes = {"scale": head_dim**-0.5, "max_seq_len": max(lengths)}
            for more in ({}, fused, {**fused, "splits": 2}):
                out = numbers.unset(count, heads, head_dim)
                given = (query, key, value), (tables, seq_lens, numbers.workspace)
                for configuration in (0, LONG_RING):
                    decode.decode_attention(
                        *given[0],
                        (caches[0], caches[1]),
                        *given[1],
                        out=out,
                        configuration=configuration,
                        **sizes,
                        **more,
                    )
                small = [cache.to(torch.float8_e4m3fn) for cache in caches]
                float8_attention.float8_attention(
                    *given[0], (small[0], small[1]), *given[1], out=out, kv_scales=(0.5, 0.02), **sizes, **more
                )


def prompt_tokens(numbers: Numbers) -> None:
    """Attention of prompts, of chunks over a paged cache, of frames and windows of pictures, in parts."""
    new, lengths = [130, 1, 64, 40], [130, 20, 64, 300]
    query_start, seq_lens = numbers.starts(new), numbers.integers(lengths)
    for heads, kv_heads, head_dim in ((4, 2, 128), (3, 1, 64), (2, 2, 80), (2, 2, 72)):
        query = numbers.normal(sum(new), heads, head_dim)
        given = {"scale": head_dim**-0.5, "max_query_len": max(new)}
        for is_causal in (True, False):
            key, value = (numbers.normal(sum(lengths), kv_heads, head_dim) for _ in "kv")
            prompts.prompt_attention(
                query, key, value, query_start, seq_lens, key_start=numbers.starts(lengths), is_causal=is_causal,
                out=numbers.unset(*query.shape), **given,
            )  # fmt: skip
            for block_size in (16, 24, 128):
                width = -(-max(lengths) // block_size)
                caches = [numbers.normal(len(new) * width, block_size, kv_heads, head_dim) for _ in "kv"]
                prompts.prompt_attention(
                    query, *caches, query_start, seq_lens, block_tables=numbers.tables(len(new), width), is_causal=is_causal,
                    out=numbers.unset(3, *query.shape), lse=torch.empty(3, heads, sum(new), device=numbers.device), **given,
                )  # fmt: skip


def expert_stacks(numbers: Numbers, num_experts: int, hidden: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (gate_up [E, 2 I, H], down [E, H, I])."""
    gate_up = numbers.normal(num_experts, 2 * inner, hidden, scale=0.05)
    return gate_up, numbers.normal(num_experts, hidden, inner, scale=0.05)


def uneven_routing(numbers: Numbers, rows_of_first: list[int]) -> experts.Routing:
    """Return a routing of tokens to 2 of 32 experts: the first experts have such numbers of rows, twelve none, the others a few."""
    first = torch.arange(len(rows_of_first)).repeat_interleave(torch.tensor(rows_of_first))
    second = torch.randint(len(rows_of_first), 20, first.shape)
    chosen = torch.stack((first, second), 1).to(numbers.device)
    return experts.routing_of(torch.rand(chosen.shape, device=numbers.device), chosen, 32)


def mixed_experts(numbers: Numbers) -> None:
    """`mix_experts` with more weights than its ring holds, hidden and inner sizes that fill stages and that do not."""
    most = experts.MIX_TOKENS
    for count, hidden, inner in ((1, 2048, 256), (2, 512, 768), (most, 512, 256), (most, 320, 320)):
        x, norm, gate = numbers.normal(count, hidden), numbers.normal(hidden), numbers.normal(64, hidden, scale=0.05)
        stacks = expert_stacks(numbers, 64, hidden, inner)
        experts.mix_experts(x, norm, EPS, gate, stacks, 4, numbers.workspace, renormalises=count > 1)


def streamed_experts(numbers: Numbers) -> None:
    """`run_experts` for few rows of each expert: none, one, a full pass, several and a part of one."""
    routing = uneven_routing(numbers, [40, 33, 1, 8, 16])
    x = numbers.normal(len(routing.weights), 512)
    stacks = expert_stacks(numbers, 32, 512, 512)
    for columns in (0, 8, 16, 32):
        experts.run_experts(x, *stacks, routing, numbers.workspace, columns=columns)
    single = experts.route(numbers.normal(1, 32), 4, renormalises=True)
    experts.run_experts(x[:1], *stacks, single, numbers.workspace)
    experts.run_experts(x[:, :320].contiguous(), *expert_stacks(numbers, 32, 320, 320), routing, numbers.workspace)
    many = experts.route(numbers.normal(200, 256), 8, renormalises=True)  # blocks with rows of three experts and more
    for columns in (8, 16):
        rows = (numbers.normal(200, 64), *expert_stacks(numbers, 256, 64, 64))
        experts.run_experts(*rows, many, numbers.workspace, columns=columns)


def tiled_experts(numbers: Numbers) -> None:
    """`expert_tiles`: tiles full and not, more of them than multiprocessors in either product, experts without rows."""
    routing = uneven_routing(numbers, [129, 128, 43, 65])
    for hidden, inner in ((512, 1024), (2048, 128)):
        x = numbers.normal(len(routing.weights), hidden)
        experts.expert_tiles(x, *expert_stacks(numbers, 32, hidden, inner), routing)


def routings(numbers: Numbers) -> None:
    """Which experts tokens go to, by one block and by many; the weighted sums of what comes back."""
    for count in (1, 32, 33, 128, 150, 1500):
        logits, x = numbers.normal(count, 64), numbers.normal(count, 512)
        chosen = torch.rand(count, 64, device=numbers.device).topk(4)
        found = [experts.route(logits, 4, renormalises=True), experts.routing_of(*chosen, 64)]
        if count <= experts.NORM_AND_ROUTE_MAX_TOKENS:
            norm, gate = numbers.normal(512), numbers.normal(64, 512, scale=0.05)
            found.append(experts.norm_and_route(x, norm, EPS, gate, 2, numbers.workspace, renormalises=False)[1])
        for routing in found:
            y = numbers.normal(len(routing.token_of_row), 512)
            experts.combine_experts(y, routing)
            experts.combine_experts(y, routing, numbers.normal(count, 512))
            experts.combine_experts(y, routing, numbers.normal(count, 512), numbers.normal(512), EPS)
    wide, gate = numbers.normal(9, 2112), numbers.normal(32, 2112, scale=0.05)  # several passes
    experts.norm_and_route(wide, numbers.normal(2112), EPS, gate, 2, numbers.workspace, renormalises=True)


def beam_searches(numbers: Numbers) -> None:
    """Beams: their attention, the scores of their children, the best of all."""
    for head_dim, parts, length in ((64, 1, 1), (128, 3, 4)):
        query, attended = numbers.normal(12, 4, head_dim), numbers.normal(parts, 12, 4, head_dim)
        key, value = numbers.normal(12, 2, head_dim), numbers.normal(12, 2, head_dim)
        own = [numbers.normal(4, 12, 2, head_dim) for _ in "kv"]
        ancestors = torch.randint(0, 12, (12, length), device=numbers.device, dtype=torch.int32)
        lse = torch.randn(parts, 4, 12, device=numbers.device)
        beams.beam_join(query, key, value, attended, lse, *own, ancestors, head_dim**-0.5)
    counts = torch.randint(0, 12, (40,), device=numbers.device)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tokens = torch.randint(0, 512, (int(starts[-1]),), device=numbers.device)
    for logits in (numbers.normal(9, 512), numbers.normal(9, 512).float()):
        beams.log_normaliser(logits)
        nodes, scores = torch.randint(-1, 40, (9,), device=numbers.device), torch.randn(9, device=numbers.device)
        beams.beam_scores(logits, scores, nodes, starts, tokens, int(counts.max()))
        beams.top_k(logits.round(), 17)
    beams.top_k(numbers.normal(1, 30000), beams.TOP_K_MAX)


def draws(numbers: Numbers) -> None:
    """The most probable token, drawn tokens, placeholders."""
    filters = ((1.0, 0.0, 0), (0.9, 0.0, 0), (1.0, 0.1, 10), (0.5, 0.05, 40))  # top-p, min-p, top-k
    for count, size in ((1, 264), (len(filters), 32000)):
        logits = numbers.normal(count, size, scale=2.0)
        best_ids, best = numbers.integers([0] * count), torch.zeros(count, device=numbers.device)
        decode.argmax(logits, numbers.workspace, token_ids=best_ids, best=best)
        top_p, min_p, top_k = (
            torch.tensor(column, device=numbers.device) for column in zip(*filters[:count], strict=True)
        )
        seed = torch.arange(count, device=numbers.device)
        options = sampling.DrawOptions(torch.full_like(best, 0.7), top_p, min_p, top_k.int(), seed, seed)
        for rows_of in (logits, logits.float()):
            drawn, logprobs = torch.empty_like(best_ids), torch.empty_like(best)
            sampling.sample(rows_of, best_ids, best, options, token_ids=drawn, logprobs=logprobs)
    sampling.replace_placeholders(numbers.integers([-1, 5, -3, -2]), numbers.integers([7, -1]))


STEPS: tuple[Callable[[Numbers], None], ...] = (
    batched_products, streamed_products, quantised_products, quantised_shapes, single_tokens, prompt_tokens, rows, draws, mixed_experts,
    streamed_experts, tiled_experts, routings, beam_searches,
)  # fmt: skip
BFLOAT16_ALONE = (mixed_experts, streamed_experts, tiled_experts, routings, beam_searches)
"""What computes in no other type."""


def parts(dtypes: list[str], only: list[str], shard: tuple[int, int]) -> list[tuple[str, Callable[[Numbers], None]]]:
    """Return (type, step) of every step (or those named in `only`) in each type, of these every N-th from the I-th for `shard` (I, N)."""
    every = [
        (dtype, step)
        for dtype in dtypes
        for step in STEPS
        if (not only or step.__name__ in only) and (dtype == "bfloat16" or step not in BFLOAT16_ALONE)
    ]
    return every[shard[0] - 1 :: shard[1]]


def walk(seconds: float, dtypes: list[str], only: list[str], shard: tuple[int, int]) -> int:
    """Take the `parts` one after the other until `seconds` are over; return 0 if none failed or was left out."""
    begin, status = time.monotonic(), 0
    names = {(dtype, step): f"{step.__name__} in {dtype}" for dtype, step in parts(dtypes, only, shard)}
    for name in names.values():
        print(f"to walk: {name}", flush=True)
    if not names:
        print("no part to walk", flush=True)
    for (dtype, step), name in names.items():
        start = time.monotonic()
        if start - begin > seconds:
            return 1
        try:
            step(Numbers(getattr(torch, dtype)))
            torch.cuda.synchronize()
        except Exception:
            print(f"failed: {name}", flush=True)
            traceback.print_exc(limit=-3)
            status = 1
        else:
            print(f"walked: {name}, {time.monotonic() - start:.1f} s", flush=True)
    return status


def never_started(dtypes: list[str]) -> tuple[list[str], int]:
    """Walk without a sanitizer; return the kernels of the module that were not started, and how many it has."""
    kernels = set(
        map(demangled, re.findall(rb"_ZN4xllm7kernels4cuda\w*_kernel\w*", Path(_C_cuda.__file__).read_bytes()))
    )
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        walk(math.inf, dtypes, [], (1, 1))
    return sorted(kernels - {event.key for event in profiled.key_averages()}), len(kernels)


def demangled(name: bytes) -> str:
    """Return a C++ name as the profiler writes it."""
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_char_p
    written: bytes | None = library.__cxa_demangle(name, None, None, None)
    return (written or name).decode()
