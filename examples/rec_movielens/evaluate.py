"""Hit@10 and NDCG@10 of the shipped model through the offline API, beside a popularity baseline: `python evaluate.py`.

Both rank all films that the user has not seen, for the last film of each user (leave-one-out).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from movielens import load
from split import split

from xllm_framework.rec import read_items
from xllm_runtime.recommender import Recommender

MODEL = Path(__file__).parent / "model"
TOP = 10
WIDTH = 512


def main() -> None:
    """Print both rows."""
    data = split(load(), read_items(MODEL / "items.bin").tokens)
    seen = [[*history, item] for history, item in zip(data.train, data.validation, strict=True)]
    number_of = {number: index for index, number in enumerate(data.item_numbers)}
    with Recommender(str(MODEL), beam_width=WIDTH) as recommender:
        outputs = recommender.recommend([data.prompt(items) for items in seen])
    found = [[number_of[item] for path in output.paths for item in path.item_ids] for output in outputs]
    counts = np.bincount(np.concatenate(seen), minlength=len(data.item_numbers))
    popular = np.argsort(-counts, kind="stable").tolist()
    print("               Hit@10  NDCG@10")
    for name, ranked in (("popularity", [popular] * len(seen)), ("beams of 512", found)):
        hit, gain = metrics(ranked, seen, data.test)
        print(f"{name:14} {hit:.4f}  {gain:.4f}")


def metrics(ranked: list[list[int]], seen: list[list[int]], wanted: list[int]) -> tuple[float, float]:
    """Return (Hit@10, NDCG@10) of rankings from which what was seen is left out."""
    hits, gains = [], []
    for ranking, history, item in zip(ranked, seen, wanted, strict=True):
        known = set(history)
        top = [candidate for candidate in ranking if candidate not in known][:TOP]
        hits.append(item in top)
        gains.append(1 / np.log2(top.index(item) + 2) if item in top else 0.0)
    return float(np.mean(hits)), float(np.mean(gains))


if __name__ == "__main__":
    main()
