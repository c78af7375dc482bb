"""Times decode steps and prefills of one GPU beside what its memory and its arithmetic allow, and prints one table.

    python benchmarks/gpu.py [--model qwen3-8b] [--rows 1x1024,8x1024] [--prefill 1x1024,8x1024] [--rounds 5]
                             [--peer SITE] [--serving] [--record FILE] [--check]

Random weights of public shapes, KV of random numbers, random tokens, greedy. A decode figure is the median time of
`LLMWorker.execute`, from arrays on the host to token ids on the host; `device` is its part on the GPU. The prefill of one prompt is
the time to the first token of a lone request. A model's rows are taken in turn, `--rounds` times, and each row's round with the median
time is printed: steps of few sequences are up to 10 % slower in spells of a twentieth of a second to seconds, for a reason not found.
The floor is the time in which the weights and the KV pass at 4.3 TB/s, or the products are done at 790 TFLOP/s, what a large copy and
a large product reach on an H200; `share` is the floor's of the time.

`--peer` is a folder with vLLM for this Python: it takes the same rows on the same card (`gpu_peer.py`), and `ratio` is its time over
ours. `--serving` goes on with `gpu_serving.py`. `--record` writes the rows for `gpu_roofline.py`. `--check` fails where a goal is
missed, or where a row is slower than the peer's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from xllm_framework.batch import ForwardInput, SamplingRows
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.worker.llm import LLMWorker

BYTES_A_SECOND, FLOPS_A_SECOND = 4.3e12, 790e12
BLOCK_SIZE = 16
WARM_UP_S = 0.5
QWEN3 = {
    "vocab_size": 151936,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "has_qk_norm": True,
    "dtype": "bfloat16",
}
DENSE = {**QWEN3, "architecture": "Qwen3ForCausalLM", "model_type": "qwen3", "num_kv_heads": 8}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
MODELS = {
    "qwen3-0.6b": ModelArgs(
        hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16, has_tied_embeddings=True, **DENSE
    ),
    "qwen3-8b": ModelArgs(hidden_size=4096, intermediate_size=12288, num_layers=36, num_heads=32, **DENSE),
    "qwen3-30b-a3b": ModelArgs(
        architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_layers=48,
        num_heads=32, num_kv_heads=4, raw=EXPERTS, **QWEN3,
    ),
}  # fmt: skip
GOALS_MS = {
    ("qwen3-8b", 1, 1024): 4.1,
    ("qwen3-8b", 8, 1024): 4.5,
    ("qwen3-8b", 32, 1024): 5.5,
    ("qwen3-8b", 128, 1024): 9.8,
    ("qwen3-8b", 256, 1024): 16.0,
    ("qwen3-8b", 32, 8192): 13.7,
    ("qwen3-0.6b", 1, 1024): 0.8,
    ("qwen3-0.6b", 32, 1024): 1.7,
    ("qwen3-0.6b", 256, 1024): 8.6,
    ("qwen3-30b-a3b", 1, 1024): 2.3,
    ("qwen3-30b-a3b", 32, 1024): 14.6,
    ("qwen3-30b-a3b", 128, 1024): 19.0,
}
"""Decode steps, by (model, sequences, context)."""
PREFILL_GOALS = {
    ("qwen3-8b", 1, 1024): 26.0,
    ("qwen3-8b", 8, 1024): 8192 / 47.3,
    ("qwen3-0.6b", 16, 1024): 16384 / 456.0,
    ("qwen3-30b-a3b", 1, 1024): 1024 / 12.0,
    ("qwen3-30b-a3b", 8, 1024): 8192 / 79.2,
}
"""Prefills in ms, by (model, prompts, tokens each)."""


@dataclass
class Line:
    """One line of the table; times in ms."""

    what: str
    model: str
    shape: str
    num_bytes: float
    """What must come from memory."""
    flops: float
    """What must be computed."""
    ms: float
    device_ms: float
    goal_ms: float | None
    peer_ms: float | None = None

    @property
    def floor_ms(self) -> float:
        """What memory or arithmetic allow."""
        return max(self.num_bytes / BYTES_A_SECOND, self.flops / FLOPS_A_SECOND) * 1e3

    @property
    def is_missed(self) -> bool:
        """Whether it is slower than it should be."""
        return self.ms > min(self.goal_ms or self.ms, self.peer_ms or self.ms)

    def __str__(self) -> str:
        goal = "" if self.goal_ms is None else f"{self.goal_ms:8.2f} {'ok' if self.ms <= self.goal_ms else 'MISSED':6}"
        peer = "" if self.peer_ms is None else f" {self.peer_ms:8.2f} {self.peer_ms / self.ms:6.2f}"
        share = f"{self.floor_ms / self.ms:6.1%}"
        times = f"{self.floor_ms:8.2f} {self.ms:8.3f} {self.device_ms:8.3f} {share}"
        return f"{self.what:8} {self.model:14} {self.shape:>9} {times} {goal}{peer}"


class Bench:
    """One model on the GPU, with a cache for `max_tokens` tokens of random KV."""

    def __init__(self, name: str, max_tokens: int, max_num_seqs: int) -> None:
        start = time.perf_counter()
        self.name, self.args = name, MODELS[name]
        self.num_blocks = max_tokens // BLOCK_SIZE + 1
        options = {
            "device": "cuda",
            "load_format": "dummy",
            "num_blocks": self.num_blocks,
            "max_num_seqs": max_num_seqs,
        }
        self.worker = LLMWorker(XLLMConfig.from_flat(options), ModelFiles(Path(), "hf", name), self.args)
        self.worker.allocate_kv_cache(self.num_blocks, BLOCK_SIZE)
        self.worker.execute(self.step(1, 1, 1))
        torch.cuda.synchronize()
        self.startup_s = time.perf_counter() - start
        for layer in self.worker._model.decoder_layers():
            for cache in layer.self_attn.kv_cache:
                cache.normal_()

    def step(self, num_sequences: int, num_new: int, context: int) -> ForwardInput:
        """`num_sequences` sequences of `context` tokens, the last `num_new` of which are new, in scattered blocks."""
        random = np.random.default_rng(0)
        width = -(-context // BLOCK_SIZE)
        blocks = random.permutation(np.arange(1, self.num_blocks))[: num_sequences * width]
        tables = blocks.reshape(num_sequences, width).astype(np.int32)
        new = np.arange(context - num_new, context)
        slots = tables[:, new // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + new % BLOCK_SIZE
        query_start = (np.arange(num_sequences + 1) * num_new).astype(np.int32)
        return ForwardInput(
            token_ids=random.integers(1000, 150000, num_sequences * num_new).astype(np.int32),
            positions=np.tile(new, num_sequences).astype(np.int32),
            slot_mapping=slots.ravel(),
            query_start=query_start,
            seq_lens=np.full(num_sequences, context, np.int32),
            block_tables=tables,
            sample_rows=query_start[1:].astype(np.int64) - 1,
            sampling=greedy(num_sequences),
            max_query_len=num_new,
        )

    def decode(self, num_sequences: int, context: int) -> Line:
        """Time a decode step."""
        step = self.step(num_sequences, 1, context)
        ms, device_ms = timed(lambda: self.worker.execute(step), 30)
        num_bytes = self.weight_bytes(num_sequences) + self.kv_bytes(num_sequences * context)
        flops = self.flops(num_sequences, num_sequences, num_sequences * context)
        goal = GOALS_MS.get((self.name, num_sequences, context))
        return Line("decode", self.name, f"{num_sequences}x{context}", num_bytes, flops, ms, device_ms, goal)

    def prefill(self, num_sequences: int, num_tokens: int) -> Line:
        """Time a step that computes whole prompts."""
        step = self.step(num_sequences, num_tokens, num_tokens)
        ms, device_ms = timed(lambda: self.worker.execute(step), 5)
        rows = num_sequences * num_tokens
        num_bytes = self.weight_bytes(rows) + self.kv_bytes(rows)
        flops = self.flops(rows, num_sequences, rows * num_tokens / 2)
        goal = PREFILL_GOALS.get((self.name, num_sequences, num_tokens))
        return Line("prefill", self.name, f"{num_sequences}x{num_tokens}", num_bytes, flops, ms, device_ms, goal)

    def flops(self, num_tokens: int, num_sampled: int, num_pairs: float) -> float:
        """Multiplications and additions of `num_tokens` tokens that attend to `num_pairs` tokens in all, times two."""
        args = self.args
        products = sum(
            parameter.numel()
            * (args.raw["num_experts_per_tok"] / args.raw["num_experts"] if is_expert(name, parameter) else 1)
            for name, parameter in self.worker._model.named_parameters()
            if name.startswith("layers.") and parameter.ndim > 1
        )
        head = args.vocab_size * args.hidden_size
        attention = 2 * num_pairs * args.num_heads * args.head_dim * args.num_layers
        return float(2 * (num_tokens * products + num_sampled * head + attention))

    def weight_bytes(self, num_sequences: int) -> float:
        """What a decode step reads of the weights; of experts those that somebody is expected to choose."""
        total = 0.0
        for name, parameter in self.worker._model.named_parameters():
            if name != "embed_tokens.weight" or self.args.has_tied_embeddings:
                total += parameter.nbytes * (
                    self.share_of_experts(num_sequences) if is_expert(name, parameter) else 1.0
                )
        return total

    def share_of_experts(self, num_sequences: int) -> float:
        """Return which share of the experts a step is expected to read."""
        chosen = self.args.raw["num_experts_per_tok"] / self.args.raw["num_experts"]
        return float(1.0 - (1.0 - chosen) ** num_sequences)

    def kv_bytes(self, num_tokens: int) -> int:
        """KV of `num_tokens` tokens."""
        return num_tokens * sum(shape.num_bytes_per_token for shape in self.worker._model.kv_cache_shapes())


def is_expert(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter holds the experts of a layer, of which a token reads a few."""
    return ".mlp." in name and parameter.shape[0] > 100_000


def greedy(num_rows: int) -> SamplingRows:
    """Rows that take their most probable token."""
    zeros, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
    return SamplingRows(
        temperature=zeros,
        top_p=ones,
        top_k=zeros.astype(np.int32),
        min_p=zeros,
        seed=zeros.astype(np.uint64),
        step=zeros.astype(np.int64),
        num_logprobs=np.full(num_rows, -1, np.int32),
        presence_penalty=zeros,
        frequency_penalty=zeros,
        repetition_penalty=ones,
    )


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median (time of a call, time on the device) in ms, after half a second of calls, three at least, in which clocks come up."""
    start, num_calls = time.perf_counter(), 0
    while num_calls < 3 or time.perf_counter() - start < WARM_UP_S:
        call()
        num_calls += 1
    walls, devices = [], []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        call()
        end.record()
        end.synchronize()
        walls.append((time.perf_counter() - start) * 1e3)
        devices.append(begin.elapsed_time(end))
    return statistics.median(walls), statistics.median(devices)


def shapes(text: str) -> list[tuple[int, int]]:
    """Parse 1x1024,8x1024."""
    return [(int(a), int(b)) for a, _, b in (item.partition("x") for item in text.split(",") if item)]


def peer_ms(site: Path, model: str, rows: list[tuple[int, int]]) -> dict[tuple[str, int, int], float]:
    """Return the peer's ms by ("decode" or "prefill", sequences, tokens)."""
    # -P: without this folder in the path, whose kernels.py the peer would take for a package of its own.
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("gpu_peer.py")),
        model,
        *(f"{a}x{b}" for a, b in rows),
    ]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [json.loads(line.removeprefix("ROW ")) for line in output.splitlines() if line.startswith("ROW ")]
    return {(row["what"], row["sequences"], row["tokens"]): row["ms"] for row in found}


def measured(name: str, rows: list[tuple[int, int]], prefills: list[tuple[int, int]], num_rounds: int) -> list[Line]:
    """Time one model; of each row return, and print, the round with the median time."""
    tokens = [-(-context // BLOCK_SIZE) * BLOCK_SIZE * sequences for sequences, context in rows + prefills]
    bench = Bench(name, max(tokens), max(sequences for sequences, _ in rows))
    print(f"startup  {name:14} {bench.startup_s:.2f} s until the first step was done", flush=True)
    lines = []
    for measure, cases in ((bench.decode, rows), (bench.prefill, prefills)):
        rounds = [[measure(*case) for case in cases] for _ in range(num_rounds)]
        for row in zip(*rounds, strict=True):
            lines.append(sorted(row, key=lambda line: line.ms)[num_rounds // 2])
            print(lines[-1], flush=True)
    return lines


def main() -> int:
    """Print the table; with --check return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--rows", default="", help="decode steps, sequences x context; default: those with goals")
    parser.add_argument(
        "--prefill", default="", help="prefills, prompts x tokens; default: those with goals, - for none"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="a folder with vLLM, to run beside")
    parser.add_argument("--record", type=Path, help="a JSON file for the rows")
    parser.add_argument("--serving", action="store_true", help="serve over HTTP, too")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    print(torch.cuda.get_device_name(), torch.__version__)
    print(
        "what     model              shape floor ms       ms   device  share  goal ms           peer  ratio", flush=True
    )
    lines: list[Line] = []
    for name in MODELS if options.model == "all" else [options.model]:
        rows = shapes(options.rows) or [key[1:] for key in GOALS_MS if key[0] == name]
        default = [key[1:] for key in PREFILL_GOALS if key[0] == name]
        prefills = [] if options.prefill == "-" else shapes(options.prefill) or default
        found = measured(name, rows, prefills, options.rounds)
        gc.collect()  # a worker and its executor refer to each other
        torch.cuda.empty_cache()
        if options.peer is not None:
            theirs = peer_ms(options.peer, name, [*dict.fromkeys(rows + prefills)])
            for line in found:
                sequences, tokens = shapes(line.shape)[0]
                line.peer_ms = theirs.get((line.what, sequences, tokens))
                print(line, flush=True)
        lines += found
    if options.record is not None:
        options.record.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    missed = [line for line in lines if line.is_missed]
    print(f"{len(missed)} of {len(lines)} rows missed")
    served = 0
    if options.serving:
        served = subprocess.call([sys.executable, str(Path(__file__).with_name("gpu_serving.py")), "--check"])
    return 1 if options.check and (missed or served) else 0


if __name__ == "__main__":
    sys.exit(main())
