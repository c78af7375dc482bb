"""Searches with a model in torch. Knows nothing of how tokens are chosen on the CPU, or of CUDA graphs."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput
from xllm_framework.batch.search_batch import SearchBatch
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.request.rec_messages import INPUT_EMBEDDING, INPUT_INDICES
from xllm_runtime.attention.beams import BeamKV, BeamMetadata
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.rec.llm_rec import beam_kv, let_attend_beams
from xllm_runtime.worker.llm import LLMWorker
from xllm_runtime.worker.rec import Beams, Float32s, Searcher, beam_positions
from xllm_runtime.worker.rec_host import HostSearcher
from xllm_runtime.worker.rec_recompute import BEAMS_PER_STEP, RecomputedBeams, blocks_per_beam, num_scratch_blocks


class TorchRecWorker(LLMWorker):
    """A `RecWorker` on torch; constructs and raises as `LLMWorker` does."""

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        super().__init__(config, files, args)
        let_attend_beams(self._model)
        self._prompts = EagerExecutor(self._model, self._platform.device)
        """Without state: pipelines on their own threads share it."""
        self._first_scratch = self._block_size = 0

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self._first_scratch, self._block_size = num_blocks, block_size
        super().allocate_kv_cache(num_blocks + num_scratch_blocks(self._config.rec, block_size), block_size)

    def open_searcher(self) -> Searcher:
        """See `RecWorker.open_searcher`."""
        rec = self._config.rec
        if rec.enable_rec_prefill_only:
            first = self._first_scratch
            self._first_scratch += BEAMS_PER_STEP * blocks_per_beam(self._block_size)
            return HostSearcher(RecomputedBeams(self.forward_steps, first, self._block_size), rec)
        host = HostSearcher(TorchBeamModel(self), rec)
        if self._platform.device.type != "cuda" or not rec.enable_rec_fast_sampler:
            return host
        from xllm_runtime.worker.rec_cuda import CUDASearcher

        model = cast("LlamaForCausalLM", self._model)
        return CUDASearcher(model, self.hidden_of, self._platform.device, self._block_size, host)

    @torch.inference_mode()
    def hidden_of(self, batch: SearchBatch) -> torch.Tensor:
        """Compute a batch's prompts; return the hidden states of their last tokens."""
        if any(batch.tensors):
            return self._hidden_of_embedded(batch)
        return self._hidden_of_steps(batch.prefills)

    def _hidden_of_steps(self, steps: list[ForwardInput]) -> torch.Tensor:
        return torch.cat([self._prompts.forward(step)[self._to_device(step.sample_rows)] for step in steps])

    def _hidden_of_embedded(self, batch: SearchBatch) -> torch.Tensor:
        """Compute prompts of which some rows are embeddings; a row is known by its search and its position."""
        model = cast("LlamaForCausalLM", self._model)
        parts, search = [], 0
        for step in batch.prefills:
            x = model.embed_tokens(self._to_device(step.token_ids.astype(np.int64)))
            ends = set((step.sample_rows + 1).tolist())
            for begin, end in pairwise(step.query_start.tolist()):
                self._put_embeddings(x, batch.tensors[search], int(step.positions[begin]), begin, end)
                search += end in ends
            attention = self._metadata_of(step)
            hidden = model.forward_embedded(x, self._to_device(step.positions.astype(np.int64)), attention)
            parts.append(hidden[self._to_device(step.sample_rows)])
        return torch.cat(parts)

    def _put_embeddings(
        self, x: torch.Tensor, tensors: dict[str, npt.NDArray[np.generic]], position: int, begin: int, end: int
    ) -> None:
        """Replace those of rows [begin, end), which begin at `position` of a prompt, that the search has embeddings for."""
        if INPUT_INDICES not in tensors:
            return
        rows = tensors[INPUT_INDICES].astype(np.int64) - position
        inside = (rows >= 0) & (rows < end - begin)
        x[self._to_device(rows[inside] + begin)] = torch.from_numpy(tensors[INPUT_EMBEDDING][inside]).to(
            x.device, x.dtype
        )

    def _metadata_of(self, step: ForwardInput) -> AttentionMetadata:
        device = self._platform.device
        return AttentionMetadata(
            slot_mapping=torch.from_numpy(step.slot_mapping).to(device),
            block_tables=torch.from_numpy(step.block_tables).to(device),
            query_start=torch.from_numpy(step.query_start).to(device),
            seq_lens=torch.from_numpy(step.seq_lens).to(device),
            max_query_len=step.max_query_len,
        )

    @torch.inference_mode()
    def prompt_logits(self, batch: SearchBatch) -> Float32s:
        """Compute a batch's prompts; return the logits of their last tokens."""
        logits: Float32s = self._model.compute_logits(self.hidden_of(batch)).cpu().numpy()
        return logits

    @torch.inference_mode()
    def forward_steps(self, steps: list[ForwardInput]) -> Float32s:
        """Compute steps one after the other; return the logits of their sampled rows."""
        logits: Float32s = self._model.compute_logits(self._hidden_of_steps(steps)).cpu().numpy()
        return logits

    @torch.inference_mode()
    def forward_beams(self, batch: SearchBatch, beams: Beams, own: BeamKV) -> Float32s:
        """Compute the newest token of every beam; return logits [W, vocab]."""
        device = self._platform.device
        round_index = beams.token_ids.shape[1] - 1
        metadata = BeamMetadata(
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
            block_tables=torch.from_numpy(batch.block_tables).to(device),
            query_start=torch.from_numpy(beams.row_start).to(device),
            seq_lens=torch.from_numpy(batch.prompt_lens).to(device),
            max_query_len=1,
            round_index=round_index,
            ancestors=torch.from_numpy(beams.ancestors).to(device),
            beam_kv=own,
        )
        metadata.max_beams = int(batch.widths.max())
        token_ids = self._to_device(beams.token_ids[:, -1].astype(np.int64))
        positions = self._to_device(beam_positions(batch, beams).astype(np.int64))
        logits: Float32s = self._model.compute_logits(self._model.forward(token_ids, positions, metadata)).cpu().numpy()
        return logits

    def new_beam_kv(self, num_rounds: int, num_rows: int) -> BeamKV:
        """Return room for the KV of beams."""
        return beam_kv(self._model, num_rounds, num_rows, self._platform.device)


class TorchBeamModel:
    """A `BeamModel` with KV of its own for the beams; grows to the largest batch that it has seen."""

    def __init__(self, worker: TorchRecWorker) -> None:
        self._worker = worker
        self._size = (0, 0)
        self._kv: BeamKV = []

    def prefill(self, batch: SearchBatch) -> Float32s:
        """See `BeamModel.prefill`."""
        return self._worker.prompt_logits(batch)

    def step(self, batch: SearchBatch, beams: Beams) -> Float32s:
        """See `BeamModel.step`."""
        wanted = batch.num_rounds - 1, batch.num_beams
        if wanted[0] > self._size[0] or wanted[1] > self._size[1]:
            self._size = max(wanted[0], self._size[0]), max(wanted[1], self._size[1])
            self._kv = self._worker.new_beam_kv(*self._size)
        return self._worker.forward_beams(batch, beams, self._kv)
