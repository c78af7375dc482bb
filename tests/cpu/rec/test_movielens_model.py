"""The recommender that the repository brings: it serves, recommends films of its catalogue, and films that belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xllm_framework.rec import read_items
from xllm_runtime.recommender import Recommender

MODEL = Path(__file__).parents[3] / "examples" / "rec_movielens" / "model"
STAR_WARS, EMPIRE, JEDI = 50, 172, 181
TOY_STORY, LION_KING, ALADDIN = 1, 71, 95
SPACE = {183, 176, 222, 195, 228, 89, 96, 227, 229, 230, 380, 449, 450, 82, 271}
"""Alien, Aliens, Star Trek, Terminator, Blade Runner, Jurassic Park, Starship Troopers."""
CHILDREN = {393, 418, 419, 420, 432, 501, 588, 596, 625, 99, 91, 102, 169, 189, 404, 139, 142, 151, 225, 243, 946, 969}
"""Disney's and other films for children."""


@pytest.fixture(scope="module")
def recommender():
    with Recommender(str(MODEL), device="cpu", threads=1) as opened:
        yield opened


def recommended(recommender: Recommender, films: list[int], count: int = 20) -> list[int]:
    items = read_items(MODEL / "items.bin")
    rows = [items.item_ids.tolist().index(film) for film in films]
    prompt = [0, *items.tokens[rows].flatten().tolist()]
    output = recommender.recommend([prompt], beam_width=64)[0]
    assert output.error is None
    found = [item for path in output.paths for item in path.item_ids if item not in films]
    assert len(found) == len(set(found)) >= count
    assert set(found) <= set(items.item_ids.tolist())
    scores = [path.score for path in output.paths]
    assert scores == sorted(scores, reverse=True)
    return found[:count]


def test_every_film_has_tokens_of_its_own():
    items = read_items(MODEL / "items.bin")
    assert items.num_items == 1682
    assert len(np.unique(items.tokens, axis=0)) == 1682


def test_films_that_belong_together_are_recommended(recommender: Recommender):
    space = set(recommended(recommender, [STAR_WARS, EMPIRE, JEDI]))
    children = set(recommended(recommender, [TOY_STORY, LION_KING, ALADDIN]))
    assert len(space & SPACE) > len(children & SPACE)
    assert len(children & CHILDREN) > len(space & CHILDREN)
    assert len(children & CHILDREN) >= 4
