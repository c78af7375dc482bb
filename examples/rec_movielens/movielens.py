"""MovieLens 100K as histories, out of the wheel of `recbole`. Knows nothing of models.

The data set is GroupLens' (https://grouplens.org/datasets/movielens/100k/): free for research, not to be redistributed, and so not a
part of this repository. It is taken from the package index at first use; the package itself is neither installed nor imported.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

WHEEL = "recbole==1.2.1"
FOLDER = "recbole/dataset_example/ml-100k"
CACHE = Path(__file__).parent / ".data"


@dataclass(frozen=True)
class MovieLens:
    """Films by number, and what each user has rated, oldest first."""

    titles: dict[int, str]
    genres: dict[int, str]
    histories: dict[int, list[int]]


def load() -> MovieLens:
    """Return the data set; fetched at the first call."""
    titles, genres = {}, {}
    for number, title, year, classes in _rows("ml-100k.item"):
        titles[int(number)] = f"{title} ({year})"
        genres[int(number)] = classes
    ratings = sorted((float(when), int(user), int(item)) for user, item, _, when in _rows("ml-100k.inter"))
    histories: dict[int, list[int]] = {}
    for _, user, item in ratings:
        histories.setdefault(user, []).append(item)
    return MovieLens(titles, genres, histories)


def _rows(name: str) -> list[list[str]]:
    path = CACHE / FOLDER / name
    if not path.exists():
        _fetch()
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def _fetch() -> None:
    CACHE.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(CACHE), WHEEL]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(CACHE.glob("recbole-*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.startswith(FOLDER):
                wheel.extract(name, CACHE)
