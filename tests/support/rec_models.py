"""Tiny random recommenders: checkpoints, catalogues, and what a search should find by brute force."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.rec import ItemTable, write_items

HISTORIES = [
    [65, 66, 67, 68],
    list(range(10, 61)),
    [7],
    [(5 * n) % 250 for n in range(70)],
    [*range(10, 61), 9, 8, 7],
    [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3],
]


def random_items(num_items: int = 120, codes: int = 9, seed: int = 0, tokens_per_item: int = 3) -> ItemTable:
    """Return items over a small codebook a level, so that prefixes and some whole lists are shared."""
    random = np.random.default_rng(seed)
    offsets = 20 + 40 * np.arange(tokens_per_item)
    tokens = (random.integers(0, codes, (num_items, tokens_per_item)) + offsets).astype(np.int32)
    return ItemTable(np.arange(1000, 1000 + num_items, dtype=np.int64), tokens)


def write_catalogue(folder: Path, items: ItemTable | None = None, name: str = "items.bin") -> Path:
    """Write an item file and return its path."""
    path = folder / name
    write_items(path, items or random_items())
    return path


@cache
def reference_model(model_type: str = "qwen3", **overrides: Any) -> torch.nn.Module:
    """Return transformers' own model of a tiny checkpoint, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint(model_type, **overrides), dtype=torch.float32).eval()


@torch.no_grad()
def forced_logprobs(
    prompt: list[int], paths: npt.NDArray[np.int32], model: torch.nn.Module | None = None
) -> npt.NDArray[np.float32]:
    """Return the log-probability of each token of each path, read after the prompt by transformers: [n, L]."""
    model = model or reference_model()
    rows = torch.tensor([prompt + path for path in paths.tolist()])
    logits = model(rows).logits[:, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logits.gather(2, torch.tensor(paths.astype(np.int64))[..., None])[..., 0].numpy()


def searched_by_hand(prompt: list[int], items: ItemTable, width: int, model: torch.nn.Module | None = None):
    """Return (paths [n, L], scores [n]) of a beam search that looks at every candidate and sorts them all."""
    known = sorted({tuple(row) for row in items.tokens.tolist()})
    rows = forced_logprobs(prompt, np.array(known, np.int32), model)
    logprobs = dict(zip(known, rows, strict=True))
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for level in range(items.tokens_per_item):
        candidates = {}
        for rank, (score, path) in enumerate(beams):
            for whole, row in logprobs.items():
                if whole[:level] == path:
                    candidates[whole[: level + 1]] = (-(score + float(row[level])), rank, whole[level])
        best = sorted(candidates.items(), key=lambda entry: entry[1])[:width]
        beams = [(-order[0], path) for path, order in best]
    return np.array([path for _, path in beams]), np.array([score for score, _ in beams])
