"""What to watch after some films: `python recommend.py "Star Wars" "Fargo"`; any part of a title names a film.

Also writes `.data/items_extended.bin`, the catalogue with titles and genres, for a server:

    xllm-server --backend rec --model model --item-file .data/items_extended.bin --enable-extended-item-info
"""

from __future__ import annotations

import sys
from pathlib import Path

from movielens import CACHE, MovieLens, load
from split import BEGIN

from xllm_framework.rec import ItemTable, read_items, write_items
from xllm_runtime.recommender import Recommender

MODEL = Path(__file__).parent / "model"
TITLED = CACHE / "items_extended.bin"


def main(wanted: list[str]) -> int:
    """Print ten films that are not among the wanted ones."""
    data, items = load(), read_items(MODEL / "items.bin")
    write_titled(data, items)
    seen = [number for text in wanted for number, title in data.titles.items() if text.lower() in title.lower()][:50]
    if not seen:
        print("No film has such a title.", file=sys.stderr)
        return 2
    print("After", "; ".join(data.titles[number] for number in seen))
    row_of = {number: row for row, number in enumerate(items.item_ids.tolist())}
    prompt = [BEGIN, *items.tokens[[row_of[number] for number in seen]].flatten().tolist()]
    with Recommender(str(MODEL), item_file=str(TITLED), enable_extended_item_info=True) as recommender:
        paths = recommender.recommend([prompt], beam_width=64)[0].paths
    films = [
        (path.score, title, kind) for path in paths for title, kind in zip(path.document_ids, path.kinds, strict=True)
    ]
    for score, title, kind in [film for film in films if film[1] not in {data.titles[number] for number in seen}][:10]:
        print(f"{score:7.2f}  {title}  [{kind}]")
    return 0


def write_titled(data: MovieLens, items: ItemTable) -> None:
    """Write the catalogue with titles and genres."""
    numbers = items.item_ids.tolist()
    titles, genres = [data.titles[number] for number in numbers], [data.genres[number] for number in numbers]
    write_items(TITLED, ItemTable(items.item_ids, items.tokens, titles, genres))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
