"""From found beams to the paths of an answer, with the items that they stand for. Knows nothing of how beams were found."""

from __future__ import annotations

from xllm_framework.batch.search_batch import FoundBeams
from xllm_framework.config import RecConfig
from xllm_framework.rec.catalogue import Catalogue
from xllm_framework.rec.catalogue_store import Served
from xllm_framework.request.rec_messages import FoundPath, SearchParams


class PathConversion:
    """Converts by the thresholds of `config`. Any thread."""

    def __init__(self, config: RecConfig) -> None:
        self._config = config

    def paths(self, beams: FoundBeams, params: SearchParams, served: Served | None, seed: int) -> list[FoundPath]:
        """Return as many paths as are wanted; items only for paths that go to the end of the catalogue's."""
        catalogue = None if served is None or not self._config.enable_convert_tokens_to_item else served.catalogue
        if catalogue is not None and catalogue.paths.num_levels != params.num_rounds:
            catalogue = None
        left = self._config.total_conversion_threshold
        paths: list[FoundPath] = []
        rows = zip(
            beams.token_ids.tolist(), beams.logprobs.tolist(), beams.scores.tolist(), beams.nodes.tolist(), strict=True
        )
        for token_ids, logprobs, score, node in rows:
            if len(paths) == params.num_return_sequences:
                break
            path = FoundPath(token_ids, logprobs, score)
            if catalogue is not None and left > 0:
                limit = min(left, self._config.each_conversion_threshold)
                path = _with_items(path, catalogue, catalogue.rows_of(node, limit, seed))
                left -= len(path.item_ids)
            paths.append(path)
        return paths


def _with_items(path: FoundPath, catalogue: Catalogue, rows: list[int]) -> FoundPath:
    items = catalogue.items
    return FoundPath(
        path.token_ids,
        path.logprobs,
        path.score,
        [int(items.item_ids[row]) for row in rows],
        [] if items.document_ids is None else [items.document_ids[row] for row in rows],
        [] if items.kinds is None else [items.kinds[row] for row in rows],
    )
