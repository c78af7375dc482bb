"""Searches of one padded size, from prompts or their last hidden states to whole paths, as one CUDA graph.

What a batch brings goes to the device by one copy, and what comes of it back by one. Knows nothing of which sizes there are.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from xllm_framework.batch import ForwardInput
from xllm_framework.batch.search_batch import FoundBeams, SearchBatch
from xllm_runtime.attention.beams import BeamKV, BeamMetadata
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows
from xllm_runtime.attention.paged_cuda import PagedCUDAAttention, StepPlan
from xllm_runtime.attention.prompts_cuda import PrefillRows
from xllm_runtime.executor.captured_graph import GraphMemory, capture_graph
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.rec.llm_rec import beam_kv
from xllm_runtime.sampling.beams import NO_PATH, BeamRows, DevicePaths, select_beams

CAPTURED_AFTER = 2
"""Eager batches of a size."""

logger = logging.getLogger(__name__)


class SearchKey(NamedTuple):
    """The padded sizes of a batch."""

    num_searches: int
    num_beams: int
    """Of each search."""
    num_rounds: int
    max_prompt_len: int
    num_splits: int
    """Parts of each prompt that are attended on their own by beams."""
    num_new_tokens: int
    """Prompt tokens that are computed in the graph; 0 where the prompts are computed outside."""


class FixedInput:
    """int32 arrays at fixed addresses on the device; `upload` brings what was written to their twins on the host."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: torch.device) -> None:
        sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        self._host = torch.zeros(sum(sizes.values()), dtype=torch.int32, device="cpu").pin_memory()
        self._device = torch.zeros_like(self._host, device=device)
        self.host: dict[str, npt.NDArray[np.int32]] = {}
        self.device: dict[str, torch.Tensor] = {}
        start = 0
        for name, shape in shapes.items():
            part = slice(start, start + sizes[name])
            self.host[name] = self._host[part].view(shape).numpy()
            self.device[name] = self._device[part].view(shape)
            start += sizes[name]

    def upload(self) -> None:
        """Copy everything; the arrays on the host may be written again once the device has reached this point."""
        self._device.copy_(self._host, non_blocking=True)


class CapturedSearch:
    """A batch's way through the device, eager at first; see the module."""

    def __init__(
        self,
        key: SearchKey,
        model: LlamaForCausalLM,
        levels: list[DevicePaths],
        device: torch.device,
        block_size: int,
        memory: GraphMemory,
    ) -> None:
        """`memory` belongs to the pipeline's graphs, of which one runs at a time."""
        self._key = key
        self._model = model
        self._levels = levels
        self._device = device
        self._block_size = block_size
        self._memory = memory
        num_searches, num_beams, num_rounds, longest, _, num_new = key
        self._input = FixedInput(
            {
                "block_tables": (num_searches, -(-longest // block_size)),
                "prompt_lens": (num_searches,),
                "widths": (num_searches,),
                "token_ids": (num_new,),
                "positions": (num_new,),
                "slots": (num_new,),
                "query_start": (num_searches + 1,),
                "new_lens": (num_searches,),
                "last_rows": (num_searches,),
            },
            device,
        )
        head = model.head.weight
        self._hidden = torch.zeros((num_searches, head.shape[1]), dtype=head.dtype, device=device)
        self._beam_kv: BeamKV = beam_kv(model, max(num_rounds - 1, 1), num_searches * num_beams, device)
        self._beam_start = torch.arange(num_searches + 1, device=device, dtype=torch.int32) * num_beams
        self._first_row = torch.arange(num_searches, device=device)[:, None] * num_beams
        self._output: torch.Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_eager = 0

    @property
    def has_graph(self) -> bool:
        """Whether the next batch is replayed."""
        return self._graph is not None

    def run(self, batch: SearchBatch, hidden: torch.Tensor | None) -> list[FoundBeams]:
        """Search `batch`. `hidden` are the last states of its prompts [S, hidden], where the key says that they are computed outside."""
        self._load(batch)
        if hidden is not None:
            self._hidden[: len(hidden)].copy_(hidden)
        if self._graph is not None and self._output is not None:
            self._graph.replay()
            return self._found(self._output, batch)
        found = self._found(self._compute(), batch)
        self._num_eager += 1
        if self._num_eager == CAPTURED_AFTER:
            self._capture()
        return found

    def _load(self, batch: SearchBatch) -> None:
        """Take a batch's arrays. Searches that pad have one beam over one token of the padding block."""
        num_requests, host = batch.num_requests, self._input.host
        host["block_tables"][:] = 0
        host["block_tables"][:num_requests, : batch.block_tables.shape[1]] = batch.block_tables
        for name, values in (("prompt_lens", batch.prompt_lens), ("widths", batch.widths)):
            host[name][:] = 1
            host[name][:num_requests] = values
        if self._key.num_new_tokens:
            self._load_prompts(batch.prefills[0], num_requests)
        self._input.upload()

    def _load_prompts(self, step: ForwardInput, num_requests: int) -> None:
        host, num_new = self._input.host, len(step.token_ids)
        for name, values, padding in (
            ("token_ids", step.token_ids, 0),
            ("positions", step.positions, 0),
            ("slots", step.slot_mapping, -1),
        ):
            host[name][num_new:] = padding
            host[name][:num_new] = values
        host["query_start"][:] = num_new
        host["query_start"][: num_requests + 1] = step.query_start
        for name, values in (("new_lens", step.seq_lens), ("last_rows", step.sample_rows)):
            host[name][:] = 0
            host[name][:num_requests] = values

    def _found(self, output: torch.Tensor, batch: SearchBatch) -> list[FoundBeams]:
        """Wait for the device; return the living paths of each search."""
        array, rounds = output.cpu().numpy(), self._key.num_rounds
        token_ids, nodes = array[..., :rounds], array[..., rounds]
        floats = array[..., rounds + 1 :].view(np.float32)
        found = []
        for row in range(batch.num_requests):
            alive = floats[row, :, -1] > NO_PATH
            logprobs, scores = floats[row, alive, :-1], floats[row, alive, -1]
            found.append(FoundBeams(token_ids[row, alive], logprobs, scores, nodes[row, alive]))
        return found

    def _compute(self) -> torch.Tensor:
        """int32 [S, W, 2 rounds + 2]: token ids, node, and the bits of log-probabilities and score."""
        num_searches, num_beams, num_rounds, *_ = self._key
        hidden = self._prompt_hidden() if self._key.num_new_tokens else self._hidden
        zeros = torch.zeros((num_searches, 1), device=self._device)
        beams = self._select(0, hidden, zeros, torch.zeros_like(zeros, dtype=torch.int64))
        token_ids, logprobs = beams.token_ids[..., None], beams.logprobs[..., None]
        ancestors = torch.empty((num_searches, num_beams, 0), dtype=torch.int32, device=self._device)
        own_rows = (self._first_row + torch.arange(num_beams, device=self._device)).int()[..., None]
        for index in range(1, num_rounds):
            ancestors = torch.cat([ancestors, own_rows], -1)
            hidden = self._step(beams.token_ids, index - 1, ancestors.flatten(0, 1))
            beams = self._select(index, hidden, beams.scores, beams.nodes)
            parents = beams.parents[..., None]
            token_ids = torch.cat([_reordered(token_ids, parents), beams.token_ids[..., None]], -1)
            logprobs = torch.cat([_reordered(logprobs, parents), beams.logprobs[..., None]], -1)
            ancestors = _reordered(ancestors, parents)
        bits = torch.cat([logprobs, beams.scores[..., None]], -1).view(torch.int32)
        return torch.cat([token_ids.int(), beams.nodes.int()[..., None], bits], -1)

    def _prompt_hidden(self) -> torch.Tensor:
        """Compute the prompts' new tokens: hidden states of their last [S, hidden]."""
        given, key = self._input.device, self._key
        metadata = AttentionMetadata(
            slot_mapping=given["slots"].long(),
            block_tables=given["block_tables"],
            query_start=given["query_start"],
            seq_lens=given["new_lens"],
            max_query_len=min(key.num_new_tokens, key.max_prompt_len),
        )
        last_rows = given["last_rows"].long()
        metadata.last = LastRows(last_rows, metadata.block_tables, metadata.seq_lens)
        # Nothing is read back: the backend need not tell prompts from single tokens.
        metadata.plans[PagedCUDAAttention.name] = StepPlan(None, PrefillRows.in_cache(metadata, self._block_size))
        return self._model.forward(given["token_ids"], given["positions"].long(), metadata)

    def _select(self, index: int, hidden: torch.Tensor, scores: torch.Tensor, nodes: torch.Tensor) -> BeamRows:
        logits = F.linear(hidden, self._model.head.weight)  # in the weights' type: nobody needs a wider copy
        paths = self._levels[index] if self._levels else None
        return select_beams(logits, scores, nodes, paths, self._input.device["widths"], self._key.num_beams)

    def _step(self, token_ids: torch.Tensor, round_index: int, ancestors: torch.Tensor) -> torch.Tensor:
        """Compute the newest token of every beam: hidden states [S * W, hidden]."""
        num_beams, prompt_lens = self._key.num_beams, self._input.device["prompt_lens"]
        metadata = BeamMetadata(
            slot_mapping=self._beam_start[:0],
            block_tables=self._input.device["block_tables"],
            query_start=self._beam_start,
            seq_lens=prompt_lens,
            max_query_len=1,
            round_index=round_index,
            ancestors=ancestors,
            beam_kv=self._beam_kv,
            num_splits=self._key.num_splits,
            max_beams=num_beams,
        )
        positions = (prompt_lens.long() + round_index)[:, None].repeat(1, num_beams).flatten()
        return self._model.forward(token_ids.flatten(), positions, metadata)

    def _capture(self) -> None:
        """Capture the way, or leave it eager for good where that fails."""
        torch.cuda.current_stream().synchronize()
        try:
            self._graph = capture_graph(self._memory, self._record)
        except RuntimeError as error:
            logger.warning("Searches of %s stay eager, as no graph could be captured: %s", self._key, error)

    def _record(self) -> None:
        self._output = self._compute()


def _reordered(rows: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """[R, W, t] by [R, W, 1] -> [R, W, t]."""
    return rows.gather(1, parents.expand(-1, -1, rows.shape[2]))
