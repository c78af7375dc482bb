"""The offline API of the rec backend: many histories in, all recommendations out, in one process."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import QueueFull, XLLMError
from xllm_framework.request.rec_messages import CatalogueChanged
from xllm_runtime.master.rec import RecMaster
from xllm_runtime.master.rec_dispatcher import SearchOutput
from xllm_runtime.master.rec_request import PreparedSearch
from xllm_runtime.master.selection import create_master

History = str | list[int]
RETRY_S = 0.001
"""Before a search is offered again to a full queue."""


class Recommender:
    """A loaded recommender for use in a script.

        with Recommender("path/to/model", item_file="items.bin") as recommender:
            for path in recommender.recommend([history], beam_width=64)[0].paths:
                print(path.item_ids, path.score)

    Args:
        model: a folder in Hugging Face layout.
        options: any option of the server by its flat name, as `beam_width=64`.
    """

    def __init__(self, model: str, **options: Any) -> None:
        config = XLLMConfig.from_flat({"backend": "rec", "model": model, **options}, "Recommender(...)")
        self.master = cast("RecMaster", create_master(config, engine_process=False))

    def recommend(self, histories: History | Sequence[History], **params: Any) -> list[SearchOutput]:
        """Search each history (a text, or token ids) and return the results in their order.

        Args:
            params: fields of `SearchParams`, and `seed`; for all histories.

        A history that cannot be served does not hold up the others: its result has `error` and `error_kind` set.

        Raises:
            InvalidRequest: a parameter is out of range; `param` names it.
        """
        return recommend(self.master, histories, params)

    def change_catalogue(self, path: Path | None, *, is_extended: bool = False) -> CatalogueChanged:
        """See `RecMaster.change_catalogue`."""
        return self.master.change_catalogue(path, is_extended=is_extended)

    def close(self) -> None:
        """End the engine and free its memory."""
        self.master.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def recommend(master: RecMaster, histories: History | Sequence[History], params: dict[str, Any]) -> list[SearchOutput]:
    """Search each history with `master`; see `Recommender.recommend`."""
    batch = _history_list(histories)
    fields = dict(params)
    seed = fields.pop("seed", None)
    search = master.search_params(**fields)
    results: dict[int, SearchOutput] = {}
    done: queue.SimpleQueue[tuple[int, SearchOutput]] = queue.SimpleQueue()
    num_running = 0
    for index, history in enumerate(batch):
        try:
            prepared = master.prepare_search(history, search, seed=seed, request_id=str(index))
            _submit(master, prepared, index, done)
            num_running += 1
        except XLLMError as error:
            results[index] = SearchOutput(
                str(index), [], finished=True, num_prompt_tokens=0, error=error.message, error_kind=error.kind
            )
    results |= dict(done.get() for _ in range(num_running))
    return [results[index] for index in range(len(batch))]


def _submit(
    master: RecMaster, prepared: PreparedSearch, index: int, done: queue.SimpleQueue[tuple[int, SearchOutput]]
) -> None:
    """Submit one search, waiting while the queue is full."""
    while True:
        try:
            master.submit(prepared, lambda output: done.put((index, output)))
        except QueueFull:
            time.sleep(RETRY_S)
        else:
            return


def _history_list(histories: History | Sequence[History]) -> list[History]:
    """Return a list of histories, also for a single text or a single list of token ids."""
    if isinstance(histories, str):
        return [histories]
    if len(histories) > 0 and isinstance(histories[0], int):
        return [cast("list[int]", histories)]
    return list(cast("Sequence[History]", histories))
