"""Starts the server on a GPU with dummy weights and drives it over HTTP, beside the same work without HTTP; prints one table.

    python benchmarks/gpu_serving.py [--model qwen3-8b] [--concurrency 1,32,256] [--check]

Every request brings 1024 tokens and gets 256, streamed, greedy, ignore_eos; a request counts from its first byte to its last. `offline` is
the offline API on as many requests at once, in one process without overlap of text and steps. The vocabulary is words, so that every token
has text. A peer takes the same load: `xllm-server bench --base-url`. `--check` fails where serving is under 93 % of offline at the
largest concurrency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu import MODELS
from xllm_framework.model import ModelArgs
from xllm_runtime import LLM, SamplingParams
from xllm_server.bench.command import measure
from xllm_server.bench.options import BenchOptions
from xllm_server.bench.prompts import make_prompts

INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256
SHARE_OF_OFFLINE = 0.93
OPTIONS = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "enable_prefix_cache": False,
    "enable_schedule_overlap": True,
}


def write_model(args: ModelArgs, folder: Path) -> None:
    """Write config.json, and a tokenizer with a word for every id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = {
        "architectures": [args.architecture],
        "model_type": args.model_type,
        "vocab_size": args.vocab_size,
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size,
        "num_hidden_layers": args.num_layers,
        "num_attention_heads": args.num_heads,
        "num_key_value_heads": args.num_kv_heads,
        "head_dim": args.head_dim,
        "max_position_embeddings": args.max_position_embeddings,
        "rope_theta": args.rope_theta,
        "rms_norm_eps": args.rms_norm_eps,
        "torch_dtype": args.dtype,
        "tie_word_embeddings": args.has_tied_embeddings,
        "hidden_act": args.activation,
        **args.raw,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = dict.fromkeys(" ".join(make_prompts(300, 2000)).split())
    names = [*words, *(f"word{index}" for index in range(args.vocab_size - len(words)))]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, float]]:
    """Run a server; yield its address and the seconds until it was ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {f"XLLM_{name.upper()}": str(value).lower() for name, value in OPTIONS.items()}
    command = [
        sys.executable,
        "-m",
        "xllm_server",
        "--model",
        str(folder),
        "--device",
        "cuda",
        "--load-format",
        "dummy",
    ]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--port", str(port)], env={**os.environ, **options})
    url = f"http://127.0.0.1:{port}"
    try:
        while not _is_ready(url):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}")
            time.sleep(0.05)
        yield url, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def served(url: str, concurrency: int) -> dict[str, Any]:
    """Return the report of `concurrency` requests at a time, after some that do not count."""
    options = BenchOptions(
        base_url=url,
        num_prompts=max(4, 2 * concurrency),  # two rounds
        concurrency=concurrency,
        input_len=INPUT_TOKENS,
        output_len=OUTPUT_TOKENS,
        warmup=min(concurrency, 64),
    )
    return asyncio.run(measure(options, {}))


def offline(folder: Path, concurrency: int) -> float:
    """Return output tokens a second of the offline API on twice `concurrency` requests."""
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    options: dict[str, Any] = {**OPTIONS, "max_num_seqs": concurrency}  # as over HTTP, where no more are there
    with LLM(str(folder), device="cuda", load_format="dummy", **options) as llm:
        prompts = make_prompts(2 * concurrency, INPUT_TOKENS)
        llm.generate(prompts[:concurrency], params, use_tqdm=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return len(prompts) * OUTPUT_TOKENS / (time.perf_counter() - start)


def main() -> int:
    """Print the table; with --check return 1 where a share is too small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS], default="qwen3-8b")
    parser.add_argument("--concurrency", default="1,32,256")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    counts = [int(count) for count in options.concurrency.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(MODELS[options.model], folder)
        with server(folder) as (url, ready_s):
            print(f"{options.model}: ready after {ready_s:.1f} s", flush=True)
            reports = {count: served(url, count) for count in counts}
        for count, report in reports.items():
            print(f"concurrency {count}: {json.dumps(report)}", flush=True)
        alone = offline(folder, max(counts))
    share = reports[max(counts)]["output_tokens_per_s"] / alone
    print(f"offline at {max(counts)}: {alone:.0f} tokens/s; served: {share:.1%} of it")
    return 1 if options.check and share < SHARE_OF_OFFLINE else 0


if __name__ == "__main__":
    sys.exit(main())
