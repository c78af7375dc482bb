"""One decode step at one padded batch size: its input, and the graph that copies it, computes, and copies the results back.

Without a graph it computes eagerly. Capturing runs nothing on the device and takes the host about ten milliseconds. Knows nothing of
models or of sampling, nor of when graphs are captured.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.executor.captured_graph import GraphMemory, capture_graph
from xllm_runtime.models.llm.llama_cuda import DecodeRows

logger = logging.getLogger(__name__)


class DecodeStep(Protocol):
    """Computes one step; called alike for every batch size."""

    def __call__(self, rows: DecodeRows, max_seq_len: int) -> None:
        """Set the outputs of `rows` from its inputs; waits for nothing, and may be captured."""


class DecodeBuffers:
    """What all batch sizes share on the device: logits and tokens."""

    def __init__(self, max_rows: int, vocab_size: int, dtype: torch.dtype, memory: GraphMemory) -> None:
        self.max_rows = max_rows
        self.memory = memory
        device = memory.device
        self.logits = torch.zeros((max_rows, vocab_size), dtype=dtype, device=device)
        self.results = torch.zeros(2 * max_rows, dtype=torch.int32, device=device)
        """Token ids of a step's rows, then the logits of its most probable tokens."""

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
        self._host_input = torch.zeros(num_rows * (3 + width), dtype=torch.int32, device="cpu").pin_memory()
        self._host_array = self._host_input.numpy()
        self.host_results = torch.zeros(2 * num_rows, dtype=torch.int32, device="cpu").pin_memory()
        """Best ids, then best logits as bits, once the step has ended; padded rows included."""
        self._input = torch.zeros(len(self._host_input), dtype=torch.int32, device=buffers.memory.device)
        self._rows = DecodeRows(
            self._input[:num_rows],
            self._input[num_rows : 2 * num_rows],
            self._input[2 * num_rows : 3 * num_rows],
            self._input[3 * num_rows :].view(num_rows, width),
            *buffers.outputs(num_rows),
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def has_graph(self) -> bool:
        """Whether steps are replayed."""
        return self._graph is not None

    @property
    def token_ids(self) -> torch.Tensor:
        """int32 [num_rows]: the tokens that the latest step computed, on the device; no placeholders."""
        return self._rows.token_ids

    def run(self, forward_input: ForwardInput) -> None:
        """Start the step of `forward_input`; the results are the buffers'."""
        self._load(forward_input)
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def _compute(self) -> None:
        self._input.copy_(self._host_input, non_blocking=True)
        if self._takes_placeholders:
            from xllm_kernels.cuda.sampling import replace_placeholders

            replace_placeholders(self._input[: self._num_rows], self._buffers.results[: self._buffers.max_rows])
        self._step(self._rows, self._max_seq_len)
        self.host_results.copy_(self._buffers.results[: 2 * self._num_rows], non_blocking=True)

    def _load(self, forward_input: ForwardInput) -> None:
        """Lay the inputs out for one transfer: token ids, lengths and positions (0 for padded rows), block tables."""
        num_rows, width = self._num_rows, self._width
        num_sequences = forward_input.num_sequences
        array = self._host_array
        columns = (forward_input.token_ids, forward_input.seq_lens, forward_input.positions)
        for column, values in zip(array[: 3 * num_rows].reshape(3, num_rows), columns, strict=True):
            column[:num_sequences] = values
            column[num_sequences:] = 0
        tables = forward_input.block_tables[:, :width]
        array[3 * num_rows :].reshape(num_rows, width)[:num_sequences, : tables.shape[1]] = tables

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the step, or leave it eager for good where that fails."""
        try:
            self._graph = capture_graph(self._buffers.memory, self._compute)
        except RuntimeError as error:
            logger.warning("Steps of %d rows stay eager, as no graph could be captured: %s", self._num_rows, error)
