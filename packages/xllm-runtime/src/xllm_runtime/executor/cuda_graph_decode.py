"""One decode step at one padded batch size: its input, and the graph that copies it, computes, and copies the results back.

The first run computes eagerly, so its answer waits for nothing, and the graph is captured right after: about ten milliseconds, since
capturing runs nothing. Graphs share one memory pool, as they never run at once. Knows nothing of models or of sampling.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.models.llm.llama_cuda import DecodeRows

logger = logging.getLogger(__name__)


class DecodeStep(Protocol):
    """Computes one step; called alike for every batch size."""

    def __call__(self, rows: DecodeRows, max_seq_len: int) -> None:
        """Set the outputs of `rows` from its inputs; waits for nothing, and may be captured."""


class DecodeBuffers:
    """What all batch sizes share on the device: logits, tokens, a pool of memory."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.max_rows = max_rows
        self.device = device
        self.logits = torch.zeros((max_rows, vocab_size), dtype=torch.bfloat16, device=device)
        self.results = torch.zeros(2 * max_rows, dtype=torch.int32, device=device)
        """Token ids of a step's rows, then the logits of its most probable tokens."""
        self.pool = torch.cuda.graph_pool_handle()
        self.capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def outputs(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (logits, best ids, best logits) of `num_rows` rows."""
        results = self.results[: 2 * num_rows]
        return self.logits[:num_rows], results[:num_rows], results[num_rows:].view(torch.float32)


class CapturedDecode:
    """Decode steps of up to `num_rows` sequences whose block tables are up to `width` wide.

    Its memory on the host is in use from `run` until the step has ended; two steps in flight need two objects. With
    `takes_placeholders` token ids may be placeholders of the tokens in `buffers`.
    """

    def __init__(
        self,
        step: DecodeStep,
        buffers: DecodeBuffers,
        num_rows: int,
        width: int,
        block_size: int,
        *,
        takes_placeholders: bool = False,
    ) -> None:
        self._step = step
        self._buffers = buffers
        self._num_rows, self._width = num_rows, width
        self._max_seq_len = width * block_size
        self._takes_placeholders = takes_placeholders
        self._host_input = torch.zeros(num_rows * (2 + width), dtype=torch.int32, device="cpu").pin_memory()
        self._host_array = self._host_input.numpy()
        self.host_results = torch.zeros(2 * num_rows, dtype=torch.int32, device="cpu").pin_memory()
        """Best ids, then best logits as bits, once the step has ended; padded rows included."""
        self._input = torch.zeros(len(self._host_input), dtype=torch.int32, device=buffers.device)
        self._rows = DecodeRows(
            self._input[:num_rows],
            self._input[num_rows : 2 * num_rows],
            self._input[2 * num_rows :].view(num_rows, width),
            *buffers.outputs(num_rows),
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._can_capture = True

    @property
    def has_graph(self) -> bool:
        """Whether the next step is replayed."""
        return self._graph is not None

    def run(self, forward_input: ForwardInput) -> None:
        """Start the step of `forward_input`; the results are the buffers'."""
        self._load(forward_input)
        if self._graph is not None:
            self._graph.replay()
            return
        self._compute()
        if self._can_capture:
            self._capture()

    def _compute(self) -> None:
        self._input.copy_(self._host_input, non_blocking=True)
        if self._takes_placeholders:
            from xllm_kernels.cuda.sampling import replace_placeholders

            replace_placeholders(self._input[: self._num_rows], self._buffers.results[: self._buffers.max_rows])
        self._step(self._rows, self._max_seq_len)
        self.host_results.copy_(self._buffers.results[: 2 * self._num_rows], non_blocking=True)

    def _load(self, forward_input: ForwardInput) -> None:
        """Lay the inputs out for one transfer: token ids, lengths (0 for padded rows), block tables."""
        num_rows, width = self._num_rows, self._width
        num_sequences = forward_input.num_sequences
        array = self._host_array
        array[:num_sequences] = forward_input.token_ids
        array[num_sequences:num_rows] = 0
        array[num_rows : num_rows + num_sequences] = forward_input.seq_lens
        array[num_rows + num_sequences : 2 * num_rows] = 0
        tables = forward_input.block_tables[:, :width]
        array[2 * num_rows :].reshape(num_rows, width)[:num_sequences, : tables.shape[1]] = tables

    def _capture(self) -> None:
        """Capture the step, or leave it eager for good where that fails."""
        self._can_capture = False
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._buffers.capture_stream):
                graph.capture_begin(pool=self._buffers.pool, capture_error_mode="thread_local")
                self._compute()
                graph.capture_end()
        except RuntimeError as error:
            logger.warning("Steps of %d rows stay eager, as no graph could be captured: %s", self._num_rows, error)
            return
        self._graph = graph
