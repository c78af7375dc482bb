"""Searches whose tokens are chosen on the CPU, whatever computes the logits."""

from __future__ import annotations

from xllm_framework.batch.search_batch import FoundBeams, SearchBatch
from xllm_framework.config import RecConfig
from xllm_runtime.worker.rec import BeamModel, run_rounds
from xllm_runtime.worker.rec_choice import chooser


class HostSearcher:
    """A `Searcher` over any `BeamModel`."""

    def __init__(self, model: BeamModel, config: RecConfig) -> None:
        self._model = model
        self._is_fast = config.enable_rec_fast_sampler

    def search(self, batch: SearchBatch) -> list[FoundBeams]:
        """See `Searcher.search`."""
        return run_rounds(self._model, batch, chooser(batch, is_fast=self._is_fast))
