"""Times the native decoder on a real GGUF file, and llama.cpp beside it; prints one table.

    python benchmarks/native.py [--model FILE.gguf] [--threads 2] [--formats auto,bf16] [--peer PYTHON]

Without --model the embedded demo model. A row is a weight format: milliseconds of a decode step of 1, 8 and 32 sequences
after 128 tokens, the weights passed a second at batch 1 (as if all were read: of a large head a greedy step reads a part),
and the time of a 512-token prompt. PYTHON is an interpreter that has llama-cpp-python; it runs the file as it is, for
batch 1 and the prompt. Best of several runs; with one thread in CPU time, which a busy machine disturbs less, else in wall
time.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from xllm_framework.config import LoadConfig
from xllm_framework.model import ModelFiles, load_model_args
from xllm_framework.model.source import resolve_model
from xllm_kernels import available_backends, set_num_threads
from xllm_kernels.native import LlamaDecoder
from xllm_runtime.models.native import decoder_shape, rotary_table
from xllm_runtime.weights.raw_reading import raw_weights

BLOCKS_PER_SEQUENCE, BLOCK_SIZE, CONTEXT, PROMPT = 40, 16, 128, 512
PEER = """
import sys, time
from llama_cpp import Llama
path, threads = sys.argv[1], int(sys.argv[2])
clock = time.process_time if threads == 1 else time.perf_counter
model = Llama(path, n_threads=threads, n_threads_batch=threads, n_ctx=1024, n_batch=512, verbose=False)
def best(times, step):
    result = 1e9
    for _ in range(times):
        start = clock(); step(); result = min(result, clock() - start)
    return result * 1e3
def prompt():
    model.reset(); model.eval(list(range(500, 1012)))
prefill = best(3, prompt)
model.reset(); model.eval(list(range(500, 628)))
print(best(25, lambda: model.eval([100])), prefill)
"""


def best_ms(clock: Callable[[], float], times: int, step: Callable[[int], object]) -> float:
    """Return the shortest of `times` calls of step(i)."""
    best = float("inf")
    for i in range(times):
        start = clock()
        step(i)
        best = min(best, clock() - start)
    return best * 1e3


def load(files: ModelFiles, weight_format: str) -> LlamaDecoder:
    """Return the decoder with room for 32 sequences."""
    args = load_model_args(files)
    decoder = LlamaDecoder(decoder_shape(args), rotary_table(args, 1024), weight_format)
    for tensor in raw_weights(files, args):
        decoder.set_weight(tensor.name, tensor.raw, tensor.kind, tensor.shape, permuted_heads=tensor.permuted_heads)
    decoder.finish()
    decoder.allocate_kv_cache(32 * BLOCKS_PER_SEQUENCE, BLOCK_SIZE)
    return decoder


def decode(decoder: LlamaDecoder, num_seqs: int, step: int) -> None:
    """Take one token of each sequence at position CONTEXT + step; what lies before it in the cache does not matter."""
    position = CONTEXT + step
    tables = np.arange(num_seqs * BLOCKS_PER_SEQUENCE, dtype=np.int32).reshape(num_seqs, -1)
    slots = tables[:, position // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    decoder.greedy(
        np.full(num_seqs, 100, np.int32),
        np.full(num_seqs, position, np.int32),
        slots,
        np.arange(num_seqs + 1, dtype=np.int32),
        np.full(num_seqs, position + 1, np.int32),
        tables,
        np.arange(num_seqs, dtype=np.int64),
    )


def prefill(decoder: LlamaDecoder) -> None:
    """Take one prompt."""
    positions = np.arange(PROMPT, dtype=np.int32)
    decoder.greedy(
        positions + 500,
        positions,
        positions.astype(np.int64),
        np.array([0, PROMPT], np.int32),
        np.array([PROMPT], np.int32),
        np.arange(BLOCKS_PER_SEQUENCE, dtype=np.int32)[None],
        np.array([PROMPT - 1]),
    )


def read_rate(clock: Callable[[], float]) -> float:
    """Return GB/s of one thread that adds up memory larger than the caches."""
    numbers = np.ones(1 << 25, np.float64)
    return numbers.nbytes / best_ms(clock, 6, lambda _: numbers.sum()) / 1e6


def measure(decoder: LlamaDecoder, clock: Callable[[], float]) -> str:
    """Return a row of the table without its name."""
    one, eight, many = (best_ms(clock, 25, lambda i, n=n: decode(decoder, n, i)) for n in (1, 8, 32))
    prompt = best_ms(clock, 3, lambda _: prefill(decoder))
    size = decoder.num_weight_bytes / 1e6
    return f"{size:6.0f}{one:10.2f}{1e3 / one:8.0f}{size / one:7.1f}{eight:9.2f}{many:9.2f}{prompt:12.0f}"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", default="auto,bf16")
    parser.add_argument("--peer", type=Path, help="an interpreter with llama-cpp-python")
    options = parser.parse_args()
    set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    files = resolve_model(options.model, LoadConfig())
    print(
        f"{files.name}, {available_backends()['cpu']}, {options.threads} threads, numpy reads {read_rate(clock):.1f} GB/s"
    )
    print(
        f"{'weights':12}{'MB':>6}{'1 seq ms':>10}{'tok/s':>8}{'GB/s':>7}{'8 seqs':>9}{'32 seqs':>9}{'512 tokens':>12}"
    )
    for weight_format in options.formats.split(","):
        print(f"{weight_format:12}{measure(load(files, weight_format), clock)}")
    if options.peer:
        command = [options.peer, "-c", PEER, str(files.path), str(options.threads)]
        step, prompt = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        print(f"{'llama.cpp':12}{'':6}{step:10.2f}{1e3 / step:8.0f}{'':25}{prompt:12.0f}")


if __name__ == "__main__":
    main()
