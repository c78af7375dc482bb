"""Times the products of a model's prompts by torch and by the fastest of cuBLASLt's algorithms, in turn, and prints one table.

    python benchmarks/gpu_products.py [--model qwen3-8b] [--rows 1024,4096,8192]

Random numbers, weights that no cache holds. A figure is the median time of a product on the device, in runs of a fifth of a second each,
long enough to reach the card's limit of power; `way` is the place of the chosen algorithm among the library's own choices. What the
runtime leaves to torch is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpu import MODELS
from xllm_framework.model import ModelArgs
from xllm_kernels.cuda.cublaslt import MOST_ALGORITHMS
from xllm_kernels.cuda.products import SAMPLES, MeasuredProducts
from xllm_runtime.layers.products import MEASURED_OPERATIONS

RUN_S, NUM_RUNS = 0.2, 5
COLD_BYTES = 150_000_000
"""More than the second-level cache holds."""


def shapes_of(args: ModelArgs) -> dict[str, tuple[int, int]]:
    """Return [N, K] of a layer's matrices, by name; experts are not among them."""
    query, key_value = args.num_heads * args.head_dim, args.num_kv_heads * args.head_dim
    shapes = {"qkv": (query + 2 * key_value, args.hidden_size), "o": (args.hidden_size, query)}
    if "num_experts" not in args.raw:
        shapes |= {
            "gate_up": (2 * args.intermediate_size, args.hidden_size),
            "down": (args.hidden_size, args.intermediate_size),
        }
    return shapes


def time_us(call: Callable[[torch.Tensor], object], weights: list[torch.Tensor]) -> float:
    """Time of one product on the device in a run of `RUN_S`."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start, num_calls = time.perf_counter(), 0
    begin.record()
    while time.perf_counter() - start < RUN_S:
        for weight in weights:
            call(weight)
        num_calls += len(weights)
        if num_calls % (4 * len(weights)) == 0:
            torch.cuda.synchronize()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / num_calls


def compare(n: int, k: int, rows: int) -> tuple[float, float, int]:
    """Return (us by torch, us by the chosen algorithm, which it is)."""
    num_weights = max(2, -(-COLD_BYTES // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5 for _ in range(num_weights)]
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    measured = MeasuredProducts()
    for index in range(MOST_ALGORITHMS * SAMPLES):
        measured(x, weights[index % num_weights])
    torch.cuda.synchronize()
    measured(x, weights[0])
    ways = {"torch": lambda weight: F.linear(x, weight), "chosen": lambda weight: measured(x, weight)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(NUM_RUNS):
        for name, way in ways.items():
            times[name].append(time_us(way, weights))
    (choice,) = measured.choices()
    return statistics.median(times["torch"]), statistics.median(times["chosen"]), -1 if choice is None else choice


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS], action="append")
    parser.add_argument("--rows", default="1024,4096,8192")
    options = parser.parse_args()
    print("model          product    rows      N      K    torch us  chosen us  ratio  way")
    for model in options.model or MODELS:
        for rows in map(int, options.rows.split(",")):
            for name, (n, k) in shapes_of(MODELS[model]).items():
                if 2 * rows * n * k < MEASURED_OPERATIONS:
                    continue
                plain, chosen, way = compare(n, k, rows)
                print(
                    f"{model:14} {name:8} {rows:6} {n:6} {k:6} {plain:11.1f} {chosen:10.1f} {plain / chosen:6.3f} {way:4}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
