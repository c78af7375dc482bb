"""Offline throughput of a backend beside transformers, in one process, run after run in turn.

    python benchmarks/offline.py --backend vlm [--images 8] [--threads 2] [--check]

Both get the same conversations: one picture each, 8 at once, greedy, the same number of tokens. transformers pads them to one
batch and gets its pictures from its own processor; both times begin with pictures and end with token ids. Without `--model` the
model is random, of a small shape. Prints one table of medians: pictures a second, and seconds to the first token of all; then the
ratios, each the median over the repetitions, and whether the goals are met. With `--check` it fails where one is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.tiny_vision import QWEN2_IMAGES, QWEN2_VIDEOS, TEXT, TOKENS, write_vision_checkpoint
from xllm_framework.request import SamplingParams
from xllm_runtime.llm import LLM

SHAPE: dict[str, Any] = {
    "text_config": {
        **TEXT,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    },
    "vision_config": {
        "depth": 12,
        "hidden_size": 640,
        "intermediate_size": 1728,
        "num_heads": 8,
        "out_hidden_size": 1024,
        "window_size": 112,
        "fullatt_block_indexes": [3, 7, 11],
    },
    **TOKENS,
}
"""A Qwen2.5-VL of about 0.2 billion parameters."""
GOAL = 1.5
"""Times as fast as transformers, in both columns."""
LARGE_IMAGES = {**QWEN2_IMAGES, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}}


class Ours:
    """xLLM's offline API."""

    name = "xllm"

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        options = {"enable_prefix_cache": False, "max_encoder_cache_size": 0, "max_processor_cache_items": 0}
        self._llm = LLM(
            str(folder),
            dtype=arguments.dtype,
            device=arguments.device,
            threads=arguments.threads,
            max_model_len=4096,
            **options,
        )

    def run(self, pictures: list[PIL.Image.Image], num_tokens: int) -> list[list[int]]:
        """Return the answers' tokens."""
        chats = [[{"role": "user", "content": [{"type": "image", "image": p}, _QUESTION]}] for p in pictures]
        outputs = self._llm.chat(chats, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
        return [output.outputs[0].token_ids for output in outputs]


class Transformers:
    """transformers' model and processor."""

    name = "transformers"

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

        self._device = "cpu" if arguments.device == "auto" else arguments.device
        dtype = getattr(torch, arguments.dtype)
        self._model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval().to(self._device)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._images = AutoImageProcessor.from_pretrained(folder)

    @torch.inference_mode()
    def run(self, pictures: list[PIL.Image.Image], num_tokens: int) -> list[list[int]]:
        """Return the answers' tokens."""
        chat = [{"role": "user", "content": [{"type": "image"}, _QUESTION]}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        images = self._images(images=pictures, return_tensors="pt")
        counts = (images["image_grid_thw"].prod(-1) // 4).tolist()
        mark = self._tokenizer.convert_ids_to_tokens(TOKENS["image_token_id"])
        texts = [text.replace(mark, mark * count) for count in counts]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")} | dict(images)
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == TOKENS["image_token_id"]).int()
        inputs = {name: value.to(self._device) for name, value in inputs.items()}
        output = self._model.generate(
            **inputs, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, use_cache=True
        )
        return [row[inputs["input_ids"].shape[1] :].tolist() for row in output]


_QUESTION = {"type": "text", "text": "What is in this picture? Answer in a few words."}


def random_pictures(count: int, size: int, seed: int) -> list[PIL.Image.Image]:
    """Return pictures that no cache has seen."""
    generator = np.random.default_rng(seed)
    return [PIL.Image.fromarray(generator.integers(0, 256, (size, size, 3), np.uint8)) for _ in range(count)]


def seconds(
    run: Callable[[list[PIL.Image.Image], int], Any], pictures: list[PIL.Image.Image], num_tokens: int
) -> float:
    """Return how long one run takes."""
    start_s = time.perf_counter()
    run(pictures, num_tokens)
    return time.perf_counter() - start_s


def ratio(values: dict[str, list[float]]) -> float:
    """Return how much longer transformers takes, median over runs one after the other."""
    pairs = zip(values["transformers"], values["xllm"], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def main() -> int:
    """Measure and print; with --check return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", choices=["vlm"], default="vlm")
    parser.add_argument("--model", help="a folder; left out, a random model")
    parser.add_argument("--images", type=int, default=8, help="conversations at once, one picture each")
    parser.add_argument("--size", type=int, default=336, help="pixels of a picture's side")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.model or temporary)
        if not arguments.model:
            write_vision_checkpoint(folder, "qwen2_5_vl", SHAPE, (LARGE_IMAGES, QWEN2_VIDEOS))
        sides = [Transformers(folder, arguments), Ours(folder, arguments)]
        first: dict[str, list[float]] = {side.name: [] for side in sides}
        whole: dict[str, list[float]] = {side.name: [] for side in sides}
        for repetition in range(arguments.repetitions):
            pictures = random_pictures(arguments.images, arguments.size, 1 + repetition)
            for side in sides:
                side.run(random_pictures(1, arguments.size, 0), 2)  # its memory may have gone cold while the other ran
                first[side.name].append(seconds(side.run, pictures, 1))
                whole[side.name].append(seconds(side.run, pictures, arguments.tokens))
                times = f"{first[side.name][-1]:.2f} s to the first tokens, {whole[side.name][-1]:.2f} s in all"
                print(f"repetition {repetition + 1}: {side.name} {times}", flush=True)
    print(
        f"{arguments.images} pictures of {arguments.size} x {arguments.size}, {arguments.tokens} tokens, {arguments.dtype}"
    )
    print(f"{'':14}{'pictures/s':>12}{'first token s':>15}")
    for side in sides:
        rate = arguments.images / statistics.median(whole[side.name])
        print(f"{side.name:14}{rate:12.2f}{statistics.median(first[side.name]):15.2f}")
    ratios = [ratio(values) for values in (whole, first)]
    print(f"{'ratio':14}{ratios[0]:11.2f}x{ratios[1]:14.2f}x")
    missed = [value for value in ratios if value < GOAL]
    print(f"goal {GOAL:.2f}x: {'MISSED' if missed else 'met'}")
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
