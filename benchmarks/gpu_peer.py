"""The peer on the rows of `gpu.py`: vLLM with dummy weights of a public shape, prompts of token ids, greedy, one line of JSON a figure.

    PYTHONPATH=SITE python -P benchmarks/gpu_peer.py [--repeats 3] MODEL 1x1024 8x1024 ...

A decode step is the time of 129 tokens less that of one, over 128; a prefill the time of one token; medians of `--repeats`. Run by
`gpu.py --peer`, which reads the lines that begin with ROW. Imports nothing of xLLM, since the peer brings other versions of packages.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

NUM_STEPS, MAX_TOKENS = 128, 16384
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
COMMON: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "attention_bias": False, "torch_dtype": "bfloat16", "head_dim": 128, "num_key_value_heads": 8,
    "vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645, "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}  # fmt: skip


class Peer:
    """vLLM with one model."""

    def __init__(self, model: str, repeats: int) -> None:
        os.environ.update(SETTINGS)
        if importlib.util.find_spec("flashinfer") is None:  # greedy steps do not call it, but vLLM imports it
            os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        from vllm import LLM

        folder = Path(tempfile.mkdtemp(prefix=f"{model}-"))
        (folder / "config.json").write_text(json.dumps(COMMON | SHAPES[model]))
        self._llm = LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=MAX_TOKENS,
            gpu_memory_utilization=0.85,
            enable_prefix_caching=False,
            max_num_seqs=256,
            max_num_batched_tokens=MAX_TOKENS,
            disable_log_stats=True,
        )
        self._random, self._repeats = random.Random(0), repeats

    def seconds(self, num_prompts: int, num_tokens: int, num_new: int) -> float:
        """Time fresh prompts."""
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": [self._random.randrange(1000, 150000) for _ in range(num_tokens)]}
            for _ in range(num_prompts)
        ]
        params = SamplingParams(
            temperature=0, max_tokens=num_new, min_tokens=num_new, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        self._llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def median_seconds(self, num_prompts: int, num_tokens: int, num_new: int) -> float:
        """Median of all repeats."""
        return statistics.median(self.seconds(num_prompts, num_tokens, num_new) for _ in range(self._repeats))


def main() -> None:
    """Print a line for each prefill and decode step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("cases", nargs="+", help="sequences x tokens")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    start = time.perf_counter()
    peer = Peer(options.model, options.repeats)
    print(f"startup {time.perf_counter() - start:.1f} s", flush=True)
    for case in options.cases:
        sequences, tokens = map(int, case.split("x"))
        peer.seconds(sequences, tokens, 2)
        first = peer.median_seconds(sequences, tokens, 1)
        step = (peer.median_seconds(sequences, tokens, 1 + NUM_STEPS) - first) / NUM_STEPS
        for what, value in (("prefill", first), ("decode", step)):
            row = {"what": what, "sequences": sequences, "tokens": tokens, "ms": round(value * 1e3, 3)}
            print("ROW " + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
