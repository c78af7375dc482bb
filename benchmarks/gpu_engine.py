"""Times decode steps and prefills as `gpu_peer.py` does: through the engine, from prompts of token ids to their last tokens.

    python benchmarks/gpu_engine.py [--repeats 3] qwen3-8b 1x1024 8x1024 ...

A decode step is the time of 129 tokens less that of one, over 128; a prefill the time of one token; medians of `--repeats`, after one
run of 129 that does not count. So contexts grow by 128 tokens in what is timed, and all that the engine does between steps is in it, while
`gpu.py` times one step alone, waited for, and all contexts of it have the length that is named. Dummy weights, greedy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from gpu_serving import OPTIONS as SERVED
from gpu_serving import write_model

from gpu import MODELS, shapes
from xllm_runtime import LLM, SamplingParams

NUM_STEPS = 128
OPTIONS = {**SERVED, "max_num_batched_tokens": 16384}  # as the peer's


def seconds(llm: LLM, prompts: list[list[int]], num_tokens: int) -> float:
    """Return how long `num_tokens` tokens take for each of `prompts`."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*MODELS])
    parser.add_argument("shapes", nargs="+", help="SEQUENCESxTOKENS")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        write_model(MODELS[options.model], Path(folder))
        with LLM(folder, device="cuda", load_format="dummy", **OPTIONS) as llm:
            for count, length in shapes(",".join(options.shapes)):
                prompts = [[draw.randrange(1000, 150000) for _ in range(length)] for _ in range(count)]
                seconds(llm, prompts, 1 + NUM_STEPS)
                first = statistics.median(seconds(llm, prompts, 1) for _ in range(options.repeats))
                whole = statistics.median(seconds(llm, prompts, 1 + NUM_STEPS) for _ in range(options.repeats))
                step_ms = (whole - first) / NUM_STEPS * 1e3
                print(
                    f"{options.model:14} {count}x{length}: prefill {first * 1e3:8.1f} ms, step {step_ms:7.3f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
