"""Times generative recommendation: whole searches, from token ids to ranked paths.

    python benchmarks/rec.py cpu [--widths 64,128,256,512]     beside transformers' beam search, one run
    python benchmarks/rec.py gpu [--check]                     Qwen3-1.7B's shape, beam 256, on one GPU
    python benchmarks/rec.py goodput [--limit-ms 200] [--start-within-ms 95]    many requests at once against one engine

Random weights, random histories and catalogues. A figure is the median time of one batch that nothing of is cached for, prefill
included. The others' figures that `gpu` prints are published ones, of an H100.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from xllm_framework.config import XLLMConfig
from xllm_framework.kv_cache import NO_MATCH, BlockManager
from xllm_framework.model import load_model_args
from xllm_framework.model.source import ModelFiles
from xllm_framework.rec.valid_paths import ValidPaths, build_paths
from xllm_framework.request.rec_messages import SearchParams
from xllm_framework.request.sequence import Sequence
from xllm_runtime.engine.rec import RecEngine, SearchedPrompt

QWEN3_1_7B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
GPU_ROWS = ((1000, 1), (5000, 1), (5000, 8))
GPU_GOALS_MS = {(1000, 1): 12.0, (5000, 1): 30.0, (5000, 8): 200.0}
PUBLISHED_MS = {(1000, 1): (17.6, 33.5), (5000, 1): (42.3, 94.6), (5000, 8): (307.9, 685.4)}
"""(NVIDIA SID-GR, SGLang's beam branch) on one H100."""
CODES, FIRST_CODE = 8192, 100_000


def main() -> int:
    """Run what the command line names; 1 where `--check` finds a goal missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cpu", "gpu", "goodput"))
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--history", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-ms", type=float, default=200.0)
    parser.add_argument("--device", default="cpu", help="of goodput")
    parser.add_argument("--start-within-ms", type=float, help="of goodput: give up what has not begun by then")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.what == "cpu":
        return cpu([int(width) for width in given.widths.split(",")], given.history, given.repeats)
    if given.what == "gpu":
        return gpu(given.repeats, check=given.check)
    return goodput(given.device, given.limit_ms, given.start_within_ms)


def cpu(widths: list[int], history: int, repeats: int) -> int:
    """Ours at each width, and transformers' at 128, on a Qwen3-shaped model of 4 layers, float32 both."""
    paths = catalogue(codes=256, num_items=20_000, first=1000)
    with checkpoint(SMALL, vocab_size=32_000, dtype="float32") as folder:
        engine = Engine(folder, device="cpu", dtype="float32", num_blocks=400, max_num_batched_tokens=4096)
        print(f"{'':24} ms")
        for width in widths:
            print(f"ours, beam {width:<13} {engine.median_ms(history, 1, width, paths, repeats):.0f}", flush=True)
        ours = engine.median_ms(history, 1, 128, paths, repeats)
        theirs = transformers_ms(folder, history, 128)
        print(f"transformers, beam 128   {theirs:.0f}  ({theirs / ours:.1f} x ours, which is {ours:.0f})")
    return 0


def gpu(repeats: int, *, check: bool) -> int:
    """Qwen3-1.7B's shape with a catalogue of a million items."""
    paths = catalogue(codes=CODES, num_items=1_000_000, first=FIRST_CODE)
    missed = 0
    with checkpoint(QWEN3_1_7B, vocab_size=151_936, dtype="bfloat16") as folder:
        engine = Engine(folder, device="cuda", dtype="bfloat16", num_blocks=4000, max_num_batched_tokens=65536)
        print("history x batch    ms  goal  SID-GR (H100)  SGLang (H100)")
        for row in GPU_ROWS:
            found = engine.median_ms(*row, 256, paths, max(repeats, 7))
            goal, others = GPU_GOALS_MS[row], PUBLISHED_MS[row]
            missed += found > goal
            print(f"{row[0]:7} x {row[1]:<5} {found:6.1f} {goal:5.0f} {others[0]:14} {others[1]:14}", flush=True)
    return int(check and missed > 0)


def goodput(device: str, limit_ms: float, start_within_ms: float | None) -> int:
    """64 callers at once, each with the next history as soon as its answer is there: of users never seen before, then of known ones."""
    from xllm_framework.rec import ItemTable, write_items
    from xllm_runtime.recommender import Recommender

    shape, vocab_size, history, width = (
        (SMALL, 32_000, 100, 16) if device == "cpu" else (QWEN3_1_7B, 151_936, 1000, 128)
    )
    dtype = "float32" if device == "cpu" else "bfloat16"
    tokens = random_tokens(codes=256, num_items=20_000, first=1000)
    with checkpoint(shape, vocab_size=vocab_size, dtype=dtype) as folder:
        write_items(folder / "items.bin", ItemTable(np.arange(len(tokens)), tokens))
        options = {"device": device, "dtype": dtype, "load_format": "dummy", "max_num_batched_tokens": 16384}
        with Recommender(
            str(folder), beam_width=width, num_blocks=12_000, rec_worker_max_concurrency=2, **options
        ) as opened:
            for name, is_known in (("new users", False), ("known users", True)):
                load = Load(opened, history, is_known=is_known, start_within_ms=start_within_ms)
                print(f"{name}: {load.run(seconds=6.0, callers=64, limit_ms=limit_ms)}", flush=True)
    return 0


class Load:
    """Callers that each wait for their answer before the next call.

    Args:
        is_known: a caller's history grows by three items from call to call, instead of being another one each time.
        start_within_ms: searches that have not begun by then are given up by the server; None waits for all.
    """

    def __init__(self, recommender: Any, history: int, *, is_known: bool, start_within_ms: float | None) -> None:
        self._master = recommender.master
        self._params = self._master.search_params()
        self._history = history
        self._is_known = is_known
        self._start_within_ms = start_within_ms
        self._answers: list[tuple[float, Any]] = []

    def run(self, *, seconds: float, callers: int, limit_ms: float) -> str:
        """Return what was measured after two seconds of warm-up."""
        begin_s = time.monotonic() + 2.0
        threads = [
            threading.Thread(target=self._call, args=(caller, begin_s, begin_s + seconds)) for caller in range(callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = sorted(latency for latency, output in self._answers if output.error is None)
        refused = len(self._answers) - len(done)
        in_time = sum(latency <= limit_ms for latency in done)
        cached = sum(output.num_cached_tokens for _, output in self._answers if output.error is None)
        whole = sum(output.num_prompt_tokens for _, output in self._answers if output.error is None)
        return (
            f"{len(done) / seconds:.0f} searches/s, P50 {statistics.median(done):.0f} ms, P99 {done[int(0.99 * len(done))]:.0f} ms, "
            f"{100 * cached / whole:.0f} % of tokens cached, {refused / seconds:.0f}/s given up; "
            f"goodput {in_time / seconds:.0f}/s within {limit_ms:.0f} ms"
        )

    def _call(self, caller: int, begin_s: float, end_s: float) -> None:
        random = np.random.default_rng(caller)
        tokens = random.integers(0, 1000, self._history).tolist()
        while (start_s := time.monotonic()) < end_s:
            if self._is_known:
                tokens = [*tokens[-2 * self._history :], *random.integers(0, 1000, 9).tolist()]
            else:
                tokens = random.integers(0, 1000, self._history).tolist()
            output = self._search(tokens, start_s)
            if start_s > begin_s:
                self._answers.append((1000 * (time.monotonic() - start_s), output))

    def _search(self, tokens: list[int], start_s: float) -> Any:
        within_ms = self._start_within_ms
        deadline_s = None if within_ms is None else start_s + within_ms / 1000
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._master.submit(self._master.prepare_search(tokens, self._params, deadline_s=deadline_s), done.put)
        return done.get()


class Engine:
    """A `RecEngine` of random weights, driven directly, with a cache that forgets everything between batches."""

    def __init__(self, folder: Path, **options: Any) -> None:
        flat = {"backend": "rec", "load_format": "dummy", "enable_prefix_cache": False, **options}
        files = ModelFiles(folder, "hf", folder.name)
        self._engine = RecEngine(XLLMConfig.from_flat(flat), files, load_model_args(files))
        self._random = np.random.default_rng(0)

    def median_ms(self, history: int, batch: int, width: int, paths: ValidPaths, repeats: int) -> float:
        """Return the median time of a batch, after two that warm up."""
        times = [self._time(history, batch, width, paths) for _ in range(repeats + 2)]
        return 1000 * statistics.median(times[2:])

    def _time(self, history: int, batch: int, width: int, paths: ValidPaths) -> float:
        engine = self._engine
        blocks = BlockManager(engine.num_blocks, engine.block_size, enable_prefix_cache=False)
        params = SearchParams(beam_width=width)
        prompts = []
        for index in range(batch):
            sequence = Sequence(str(index), 0, self._random.integers(0, 1000, history), reserve=1)
            assert blocks.admit(sequence, NO_MATCH, history), "the cache is too small"
            prompts.append(SearchedPrompt(sequence, params, 0))
        start_s = time.perf_counter()
        found = engine.searchers[0].search(engine.batch(prompts, paths))
        elapsed_s = time.perf_counter() - start_s
        assert all(len(beams.scores) == width for beams in found)
        return elapsed_s


def transformers_ms(folder: Path, history: int, width: int) -> float:
    """Return the time of transformers' own beam search for three tokens, once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()
    rows = torch.randint(0, 1000, (1, history))
    start_s = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=3,
            min_new_tokens=3,
            do_sample=False,
            pad_token_id=0,
        )
    return 1000 * (time.perf_counter() - start_s)


def random_tokens(*, codes: int, num_items: int, first: int) -> np.ndarray:
    """Return int32 [items, 3] of random codes, those of each level behind the ones before."""
    random = np.random.default_rng(0)
    return (random.integers(0, codes, (num_items, 3)) + first + codes * np.arange(3)).astype(np.int32)


def catalogue(**sizes: int) -> ValidPaths:
    """Return the paths of `random_tokens`."""
    return build_paths(random_tokens(**sizes))[0]


@contextmanager
def checkpoint(shape: dict[str, int], *, vocab_size: int, dtype: str) -> Iterator[Path]:
    """Yield a folder with a config.json of Qwen3's kind, and a tokenizer that nothing needs."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **shape,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        _write_tokenizer(folder)
        yield folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    sys.exit(main())
