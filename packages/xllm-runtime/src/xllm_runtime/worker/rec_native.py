"""Searches in C++ on the CPU, without torch. Knows nothing of how tokens are chosen."""

from __future__ import annotations

import numpy as np

from xllm_framework.batch import ForwardInput
from xllm_framework.batch.search_batch import SearchBatch
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_kernels.native import LlamaDecoder
from xllm_kernels.native.beams import NativeBeams
from xllm_runtime.worker.native import KV_TYPES, NativeWorker, step_arrays
from xllm_runtime.worker.rec import Beams, Float32s, Searcher, beam_positions
from xllm_runtime.worker.rec_host import HostSearcher
from xllm_runtime.worker.rec_recompute import BEAMS_PER_STEP, RecomputedBeams, blocks_per_beam, num_scratch_blocks


class NativeRecWorker(NativeWorker):
    """A `RecWorker` on the native decoder; constructs and raises as `NativeWorker` does."""

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        super().__init__(config, files, args)
        self._first_scratch = self._block_size = 0

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self._first_scratch, self._block_size = num_blocks, block_size
        rec = self._config.rec
        super().allocate_kv_cache(num_blocks + num_scratch_blocks(rec, block_size), block_size)

    def open_searcher(self) -> Searcher:
        """See `RecWorker.open_searcher`."""
        rec = self._config.rec
        if not rec.enable_rec_prefill_only:
            return HostSearcher(NativeBeamModel(self._decoder, KV_TYPES[self.dtype][0]), rec)
        return HostSearcher(RecomputedBeams(self._forward, self._next_scratch(), self._block_size), rec)

    def _forward(self, steps: list[ForwardInput]) -> Float32s:
        return forward_steps(self._decoder, steps)

    def _next_scratch(self) -> int:
        """Return the first scratch block of another pipeline."""
        first = self._first_scratch
        self._first_scratch += BEAMS_PER_STEP * blocks_per_beam(self._block_size)
        return first


def forward_steps(decoder: LlamaDecoder, steps: list[ForwardInput]) -> Float32s:
    """Compute steps one after the other; return the logits of their sampled rows."""
    return np.concatenate([decoder.forward(*step_arrays(step), step.sample_rows) for step in steps])


class NativeBeamModel:
    """A `BeamModel` with KV of its own for the beams; grows to the largest batch that it has seen."""

    def __init__(self, decoder: LlamaDecoder, dtype: str) -> None:
        self._decoder = decoder
        self._dtype = dtype
        self._size = (0, 0)
        self._beams: NativeBeams | None = None

    def prefill(self, batch: SearchBatch) -> Float32s:
        """See `BeamModel.prefill`."""
        return forward_steps(self._decoder, batch.prefills)

    def step(self, batch: SearchBatch, beams: Beams) -> Float32s:
        """See `BeamModel.step`."""
        cache = self._cache(batch.num_rounds - 1, batch.num_beams)
        round_index = beams.token_ids.shape[1] - 1
        return cache.forward(
            round_index,
            np.ascontiguousarray(beams.token_ids[:, -1]),
            beam_positions(batch, beams),
            beams.row_start,
            batch.prompt_lens,
            batch.block_tables,
            beams.ancestors,
        )

    def _cache(self, num_rounds: int, num_rows: int) -> NativeBeams:
        if self._beams is None or num_rounds > self._size[0] or num_rows > self._size[1]:
            self._size = max(num_rounds, self._size[0]), max(num_rows, self._size[1])
            self._beams = NativeBeams(self._decoder, *self._size, "bf16" if self._dtype == "bf16" else "f32")
        return self._beams
