"""Times pictures on a GPU: first tokens and decode steps of a vision-language model's public shape, and prints one table.

    python benchmarks/gpu_vlm.py [--pictures 1,8] [--size 1024] [--peer SITE] [--profile] [--check]

Random weights in bfloat16; as many conversations at once as pictures, one picture of random pixels and a question each, greedy; no picture
comes twice, so that no cache helps. `first` is the time from pictures in memory to the first token of all, resizing included; `decode` a
step after that; medians. `--peer` is a folder with vLLM for this Python: it gets the same folder, pictures and prompts on the same card
(`gpu_vlm_peer.py`), once with its engine in a process of its own, as it comes, and once without; `ratio` is its time over ours.
`--profile` shows what the device does until the first tokens. `--check` fails where a row is slower than the peer's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from xllm_framework.request import SamplingParams
from xllm_runtime.llm import LLM

NUM_STEPS, REPEATS = 64, 5
MAX_MODEL_LEN, MAX_BATCHED_TOKENS, NUM_BLOCKS = 4096, 16384, 2048
QUESTION = "What is in this picture? Answer in a few words."
MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
"""What the vocabulary holds beside the 256 bytes, from id 256 on."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
"""What the template makes of a picture and the question."""
QWEN2_5_VL_7B: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "image_token_id": 262,
    "video_token_id": 263,
    "vision_start_token_id": 259,
    "vision_end_token_id": 260,
    "text_config": {
        "model_type": "qwen2_5_vl_text", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "dtype": "bfloat16",
        "bos_token_id": 256, "eos_token_id": 258,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 3584, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu",
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2,
    },
}  # fmt: skip
PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 2048}
IMAGES: dict[str, Any] = {"size": PIXELS, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}


def write_model(folder: Path) -> None:
    """Write everything but weights: the configuration, a tokenizer of bytes and marks, and how images become pixels."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": MARKS[0], "eos_token": MARKS[2]}
    written = {
        "config.json": QWEN2_5_VL_7B,
        "tokenizer_config.json": {**settings, "chat_template": CHAT_TEMPLATE},
        "preprocessor_config.json": {**IMAGES, "image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config.json": {**IMAGES, "video_processor_type": "Qwen2VLVideoProcessor"},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))


class Bench:
    """xLLM's offline API with one model on the GPU."""

    def __init__(self, folder: Path, size: int) -> None:
        start = time.perf_counter()
        self._llm = LLM(
            str(folder),
            load_format="dummy",
            device="cuda",
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            max_encoder_tokens=MAX_BATCHED_TOKENS,
            num_blocks=NUM_BLOCKS,
            enable_prefix_cache=False,
        )
        self._size = size
        self._random = np.random.default_rng(0)
        self.seconds(1, 2)
        self.startup_s = time.perf_counter() - start

    def close(self) -> None:
        """Free the device's memory, which the peer wants."""
        self._llm.close()
        del self._llm
        gc.collect()  # a worker and its executor refer to each other
        torch.cuda.empty_cache()

    def seconds(self, num_pictures: int, num_new: int) -> float:
        """Time fresh pictures."""
        shape = (self._size, self._size, 3)
        pictures = [PIL.Image.fromarray(self._random.integers(0, 256, shape, np.uint8)) for _ in range(num_pictures)]
        text = {"type": "text", "text": QUESTION}
        chats = [[{"role": "user", "content": [{"type": "image", "image": picture}, text]}] for picture in pictures]
        params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
        start = time.perf_counter()
        outputs = self._llm.chat(chats, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - start
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
        return elapsed_s

    def row(self, num_pictures: int) -> dict[str, float]:
        """Return the ms of a row by "first" and "decode"."""
        self.seconds(num_pictures, 2)
        first = statistics.median(self.seconds(num_pictures, 1) for _ in range(REPEATS))
        whole = statistics.median(self.seconds(num_pictures, 1 + NUM_STEPS) for _ in range(REPEATS))
        return {"first": first * 1e3, "decode": (whole - first) / NUM_STEPS * 1e3}

    def profile(self, num_pictures: int) -> None:
        """Print the kernels of one run to the first tokens, longest first."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            elapsed_s = self.seconds(num_pictures, 1)
            torch.cuda.synchronize()
        kernels = sorted(
            ((event.self_device_time_total / 1e3, event.count, event.key) for event in profiler.key_averages()),
            reverse=True,
        )
        print(f"{num_pictures} pictures: {elapsed_s * 1e3:.1f} ms, of which the device is busy", end=" ")
        print(f"{sum(ms for ms, *_ in kernels):.1f} ms")
        for ms, count, name in kernels[:16]:
            print(f"{ms:9.2f} ms {count:6} x {ms / count * 1e3:8.1f} us  {name[:100]}")


def peer_rows(site: Path, folder: Path, pictures: list[int], size: int, *, one_process: bool) -> dict[int, Any]:
    """Return the peer's rows by pictures."""
    # -P: without this folder in the path, whose kernels.py the peer would take for a package of its own.
    script = str(Path(__file__).with_name("gpu_vlm_peer.py"))
    command = [sys.executable, "-P", script, str(folder), PROMPT, str(size), *map(str, pictures)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one_process)),
    }
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [json.loads(line.removeprefix("ROW ")) for line in output.splitlines() if line.startswith("ROW ")]
    return {row["pictures"]: row for row in found}


def show(side: str, pictures: int, row: dict[str, float], ours: dict[str, float]) -> None:
    """Print a line of the table."""
    rate = pictures / row["first"] * 1e3
    ratios = f"{row['first'] / ours['first']:7.2f} {row['decode'] / ours['decode']:7.2f}"
    print(f"{side:22} {pictures:8} {row['first']:10.1f} {rate:10.1f} {row['decode']:10.3f} {ratios}", flush=True)


def main() -> int:
    """Print the table; with --check return 1 where the peer is faster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", default="1,8", help="conversations at once, one picture each")
    parser.add_argument("--size", type=int, default=1024, help="pixels of a picture's side")
    parser.add_argument("--peer", type=Path, help="a folder with vLLM, to run beside")
    parser.add_argument("--profile", action="store_true", help="show what the device does")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    pictures = [int(number) for number in options.pictures.split(",")]
    print(torch.cuda.get_device_name(), torch.__version__)
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder)
        with closing(Bench(folder, options.size)) as bench:
            print(f"startup {bench.startup_s:.1f} s until the first answer")
            print("side                   pictures   first ms pictures/s  decode ms   ratio   ratio", flush=True)
            rows = {number: bench.row(number) for number in pictures}
            for number, row in rows.items():
                show("xllm", number, row, row)
            if options.profile:
                bench.profile(pictures[-1])
        for one_process in (True, False) if options.peer else ():
            side = f"vllm, {'one process' if one_process else 'two processes'}"
            theirs = peer_rows(options.peer, folder, pictures, options.size, one_process=one_process)
            for number, row in theirs.items():
                show(side, number, row, rows[number])
                missed += sum(row[what] < rows[number][what] for what in ("first", "decode"))
    print(f"{missed} figures slower than the peer's")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
