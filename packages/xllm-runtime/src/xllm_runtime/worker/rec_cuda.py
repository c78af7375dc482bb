"""Searches on a GPU: after the prefill, all rounds in one CUDA graph, from the prompts' last hidden states to whole paths.

A graph serves all batches of one `RoundsKey` (padded sizes). The first batch of a size computes eagerly and captures afterwards;
later ones are one replay: nothing is read back between rounds. Graphs of a catalogue end with it. Knows nothing of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch.search_batch import FoundBeams, SearchBatch
from xllm_framework.rec.valid_paths import ValidPaths
from xllm_runtime.attention.beams import BeamKV, BeamMetadata
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.rec.llm_rec import beam_kv
from xllm_runtime.sampling.beams import NO_PATH, BeamRows, DevicePaths, select_beams
from xllm_runtime.worker.rec import Searcher

MAX_GRAPHS = 16
"""Of one pipeline; the oldest goes first."""
BEAMS_PER_TILE = 128
"""Queries of one head that a block of threads attends together."""
MULTIPROCESSORS = 132
"""Of an H200."""
MIN_KEYS_PER_PART = 256

logger = logging.getLogger(__name__)
HiddenOf = Callable[[SearchBatch], torch.Tensor]


class RoundsKey(NamedTuple):
    """The padded sizes of a batch."""

    num_searches: int
    num_beams: int
    """Of each search."""
    num_rounds: int
    max_prompt_len: int
    num_splits: int
    """Parts of each prompt that are attended on their own."""


class CUDASearcher:
    """A `Searcher` of one pipeline, on a stream of its own."""

    def __init__(
        self, model: CausalLM, hidden_of: HiddenOf, device: torch.device, block_size: int, drawing: Searcher
    ) -> None:
        """`drawing` serves batches that draw, which are no matter of speed."""
        self._drawing = drawing
        self._model = model
        self._hidden_of = hidden_of
        self._device = device
        self._block_size = block_size
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._paths: ValidPaths | None = None
        self._levels: list[DevicePaths] = []
        self._captured: dict[RoundsKey, CapturedRounds] = {}

    @torch.inference_mode()
    def search(self, batch: SearchBatch) -> list[FoundBeams]:
        """See `Searcher.search`."""
        with torch.cuda.stream(self._stream):
            if batch.draws:
                return self._drawing.search(batch)
            self._use(batch.paths)
            hidden = self._hidden_of(batch)
            key = rounds_key(batch, self._model.args.num_heads)
            rounds = self._captured.pop(key, None)
            if rounds is None:
                rounds = CapturedRounds(key, self._model, self._levels, hidden, self._block_size)
            self._captured[key] = rounds  # the newest last
            while len(self._captured) > MAX_GRAPHS:
                del self._captured[next(iter(self._captured))]
            rounds.load(batch, hidden)
            rounds.run()
            return rounds.results(batch)

    def _use(self, paths: ValidPaths | None) -> None:
        """Bring a catalogue's paths to the device, unless they are there."""
        if paths is self._paths:
            return
        self._captured.clear()
        self._paths = paths
        self._levels = [] if paths is None else device_paths(paths, self._device)


def device_paths(paths: ValidPaths, device: torch.device) -> list[DevicePaths]:
    """Return all levels of `paths` on `device`."""
    return [
        DevicePaths(
            torch.from_numpy(paths.starts[level].astype(np.int64)).to(device),
            torch.from_numpy(paths.tokens[level].astype(np.int64)).to(device),
            paths.most_children(level),
        )
        for level in range(paths.num_levels)
    ]


def rounds_key(batch: SearchBatch, num_heads: int) -> RoundsKey:
    """Return the sizes that serve `batch`: searches in powers of two, tokens in steps of an eighth of theirs."""
    num_searches = 1 << (batch.num_requests - 1).bit_length()
    num_beams, longest = int(batch.widths.max()), _rounded(int(batch.prompt_lens.max()))
    tiles = num_searches * num_heads * -(-num_beams // BEAMS_PER_TILE)
    num_splits = max(1, min(MULTIPROCESSORS // tiles, longest // MIN_KEYS_PER_PART))
    return RoundsKey(num_searches, num_beams, batch.num_rounds, longest, num_splits)


def _rounded(count: int) -> int:
    step = max(64, 1 << max(count.bit_length() - 4, 0))
    return -(-count // step) * step


@dataclass(slots=True)
class RoundsInput:
    """What a batch brings, at fixed addresses."""

    hidden: torch.Tensor
    block_tables: torch.Tensor
    prompt_lens: torch.Tensor
    widths: torch.Tensor


@dataclass(slots=True)
class RoundsOutput:
    """What the rounds leave: [R, W, rounds], [R, W, rounds], [R, W], [R, W]."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    scores: torch.Tensor
    nodes: torch.Tensor


class CapturedRounds:
    """All rounds of one size; see the module."""

    def __init__(
        self, key: RoundsKey, model: CausalLM, levels: list[DevicePaths], like: torch.Tensor, block_size: int
    ) -> None:
        """Hidden states are like the rows of `like`."""
        self._key = key
        self._model = model
        self._head = cast("LlamaForCausalLM", model).head
        self._levels = levels
        self._device = device = like.device
        num_searches, num_beams, num_rounds, *_ = key

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._input = RoundsInput(
            zeros(num_searches, like.shape[1], dtype=like.dtype),
            zeros(num_searches, -(-key.max_prompt_len // block_size), dtype=torch.int32),
            zeros(num_searches, dtype=torch.int32),
            zeros(num_searches, dtype=torch.int64),
        )
        self._beam_kv: BeamKV = beam_kv(model, max(num_rounds - 1, 1), num_searches * num_beams, device)
        self._query_start = torch.arange(num_searches + 1, device=device, dtype=torch.int32) * num_beams
        self._first_row = torch.arange(num_searches, device=device)[:, None] * num_beams
        self._output: RoundsOutput | None = None
        self._captured: RoundsOutput | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._can_capture = True

    @property
    def has_graph(self) -> bool:
        """Whether the next batch is replayed."""
        return self._graph is not None

    def load(self, batch: SearchBatch, hidden: torch.Tensor) -> None:
        """Take a batch's input. Searches that pad have one beam over one token of the padding block."""
        num_requests, key, target = batch.num_requests, self._key, self._input
        tables = np.zeros(target.block_tables.shape, np.int32)
        tables[:num_requests, : batch.block_tables.shape[1]] = batch.block_tables
        lens = np.ones(key.num_searches, np.int32)
        lens[:num_requests] = batch.prompt_lens
        widths = np.ones(key.num_searches, np.int64)
        widths[:num_requests] = batch.widths
        target.hidden[:num_requests].copy_(hidden)
        self._upload(target.block_tables, tables)
        self._upload(target.prompt_lens, lens)
        self._upload(target.widths, widths)

    def run(self) -> None:
        """Start all rounds."""
        if self._graph is not None:
            self._graph.replay()
            self._output = self._captured
            return
        self._output = self._compute()
        if self._can_capture:
            self._capture()

    def results(self, batch: SearchBatch) -> list[FoundBeams]:
        """Wait for the rounds; return the living paths of each search."""
        assert self._output is not None, "run comes first"
        token_ids, logprobs, scores, nodes = (
            tensor.cpu().numpy()
            for tensor in (self._output.token_ids, self._output.logprobs, self._output.scores, self._output.nodes)
        )
        found = []
        for row in range(batch.num_requests):
            alive = scores[row] > NO_PATH
            found.append(
                FoundBeams(
                    token_ids[row, alive].astype(np.int32),
                    logprobs[row, alive],
                    scores[row, alive],
                    nodes[row, alive].astype(np.int32),
                )
            )
        return found

    @staticmethod
    def _upload(target: torch.Tensor, array: npt.NDArray[np.integer]) -> None:
        target.copy_(torch.from_numpy(array))

    def _compute(self) -> RoundsOutput:
        num_searches, num_beams, num_rounds, *_ = self._key
        zeros = torch.zeros((num_searches, 1), device=self._device)
        beams = self._select(0, self._input.hidden, zeros, torch.zeros_like(zeros, dtype=torch.int64))
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
        return RoundsOutput(token_ids, logprobs, beams.scores, beams.nodes)

    def _select(self, index: int, hidden: torch.Tensor, scores: torch.Tensor, nodes: torch.Tensor) -> BeamRows:
        logits = torch.nn.functional.linear(hidden, self._head.weight)  # in bfloat16: nobody needs a wider copy
        paths = self._levels[index] if self._levels else None
        return select_beams(logits, scores, nodes, paths, self._input.widths, self._key.num_beams)

    def _step(self, token_ids: torch.Tensor, round_index: int, ancestors: torch.Tensor) -> torch.Tensor:
        """Compute the newest token of every beam: hidden states [R * W, hidden]."""
        num_beams = self._key.num_beams
        metadata = BeamMetadata(
            slot_mapping=self._query_start[:0],
            block_tables=self._input.block_tables,
            query_start=self._query_start,
            seq_lens=self._input.prompt_lens,
            max_query_len=1,
            round_index=round_index,
            ancestors=ancestors,
            beam_kv=self._beam_kv,
            num_splits=self._key.num_splits,
            max_beams=num_beams,
        )
        positions = (self._input.prompt_lens.long() + round_index)[:, None].repeat(1, num_beams).flatten()
        return self._model.forward(token_ids.flatten(), positions, metadata)

    def _capture(self) -> None:
        """Capture the rounds, or leave them eager for good where that fails."""
        self._can_capture = False
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.current_stream().synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            self._captured = self._compute()
            graph.capture_end()
        except RuntimeError as error:
            logger.warning("Rounds of %s stay eager, as no graph could be captured: %s", self._key, error)
            return
        self._graph = graph


def _reordered(rows: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """[R, W, t] by [R, W, 1] -> [R, W, t]."""
    return rows.gather(1, parents.expand(-1, -1, rows.shape[2]))
