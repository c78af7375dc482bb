"""The peer on the rows of `gpu_vlm.py`: vLLM on the same folder, pictures and prompts, greedy, one line of JSON a row.

    PYTHONPATH=SITE python -P benchmarks/gpu_vlm_peer.py FOLDER PROMPT SIZE 1 8 ...

A decode step is the time of 65 tokens less that of one, over 64; medians of five. Its caches are off, which spares it the hashing. Run by
`gpu_vlm.py --peer`, which reads the lines that begin with ROW. Imports nothing of xLLM, since the peer brings other versions of packages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import PIL.Image

NUM_STEPS, REPEATS = 64, 5
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class Peer:
    """vLLM with the model in a folder."""

    def __init__(self, folder: str, prompt: str, size: int) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=4096,
            max_num_batched_tokens=16384,
            max_num_seqs=64,
            gpu_memory_utilization=0.6,
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
            limit_mm_per_prompt={"image": 1, "video": 0},
            disable_log_stats=True,
        )
        self._prompt, self._size = prompt, size
        self._random = np.random.default_rng(0)

    def seconds(self, num_pictures: int, num_new: int) -> float:
        """Time fresh pictures."""
        from vllm import SamplingParams

        prompts: list[Any] = []
        for _ in range(num_pictures):
            pixels = self._random.integers(0, 256, (self._size, self._size, 3), np.uint8)
            prompts.append(
                {"prompt": self._prompt, "multi_modal_data": {"image": PIL.Image.fromarray(pixels)}},
            )
        params = SamplingParams(
            temperature=0, max_tokens=num_new, min_tokens=num_new, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - start
        if any(len(output.outputs[0].token_ids) != num_new for output in outputs):
            raise RuntimeError(f"an answer has not {num_new} tokens")
        return elapsed_s

    def row(self, num_pictures: int) -> dict[str, float]:
        """Return the ms of a row by "first" and "decode"."""
        self.seconds(num_pictures, 2)
        first = statistics.median(self.seconds(num_pictures, 1) for _ in range(REPEATS))
        whole = statistics.median(self.seconds(num_pictures, 1 + NUM_STEPS) for _ in range(REPEATS))
        return {"first": first * 1e3, "decode": (whole - first) / NUM_STEPS * 1e3}


def main() -> None:
    """Print a line for each number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("prompt", help="with the mark of one picture")
    parser.add_argument("size", type=int, help="pixels of a picture's side")
    parser.add_argument("pictures", type=int, nargs="+", help="prompts at once, one picture each")
    options = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    start = time.perf_counter()
    peer = Peer(options.folder, options.prompt, options.size)
    print(f"startup {time.perf_counter() - start:.1f} s", flush=True)
    for number in options.pictures:
        print("ROW " + json.dumps({"pictures": number, **peer.row(number)}), flush=True)


if __name__ == "__main__":
    main()
