"""Runs decode steps from CUDA graphs, everything else eagerly.

A graph serves all steps of one padded batch size and table width (`decode_buckets`) and holds the whole step, from token ids to
the most probable tokens, at fixed addresses. It is captured when its size has been seen once, so that serving begins at once.
Knows nothing of requests; rows with other wishes than the most probable token get the logits.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from xllm_framework.batch import ForwardInput, ForwardOutput, SamplingRows
from xllm_runtime.executor.cuda_graph_decode import CapturedDecode, DecodeBuffers
from xllm_runtime.executor.decode_buckets import row_bucket, width_bucket
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.executor.interface import DecodedRows, PendingOutput
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.llama_cuda import LlamaDecodeStep, why_no_decode_step
from xllm_runtime.sampling.draw_cuda import OptionsUpload, draw_tokens, why_no_draw
from xllm_runtime.sampling.most_probable import is_drawn_as_it_is, most_probable_output, takes_most_probable

MAX_ROWS = 512
"""Steps of more sequences run eagerly."""

logger = logging.getLogger(__name__)


class CUDAGraphExecutor(EagerExecutor):
    """Runs `model` on GPU `device`, with up to `max_num_seqs` sequences a step.

    With `is_overlapped` a step may be started while the one before it is under way, and take its tokens where they are.
    """

    def __init__(
        self, model: CausalLM, device: torch.device, max_num_seqs: int, *, is_overlapped: bool = False
    ) -> None:
        super().__init__(model, device)
        self._is_overlapped = is_overlapped
        self._turn = 0
        """Which of two sets of host memory the next step uses."""
        self._max_rows = row_bucket(min(max_num_seqs, MAX_ROWS))
        self._step: LlamaDecodeStep | None = None
        self._buffers: DecodeBuffers | None = None
        self._drawing: tuple[Drawing, Drawing] | None = None
        self._captured: dict[tuple[int, int, int], CapturedDecode] = {}
        self._is_prepared = False
        self._block_size = 0

    @torch.inference_mode()
    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`."""
        num_rows = forward_input.num_sequences
        is_decode = forward_input.max_query_len == 1 and len(forward_input.sample_rows) == num_rows
        if not is_decode or num_rows > self._max_rows or forward_input.prompt_logprobs:
            return None
        if not self._is_prepared:
            self._prepare()
        if self._step is None or self._buffers is None or self._drawing is None:
            return None
        if self._is_overlapped:
            self._turn = 1 - self._turn
        num_blocks = -(-int(forward_input.seq_lens.max()) // self._block_size)
        key = row_bucket(num_rows), width_bucket(num_blocks), self._turn
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = CapturedDecode(
                self._step, self._buffers, *key[:2], self._block_size, takes_placeholders=self._is_overlapped
            )
        captured.run(forward_input)
        return GraphRows(self._buffers, captured, self._drawing[self._turn], num_rows)

    @property
    def num_graphs(self) -> int:
        """How many batch sizes are replayed by now."""
        return sum(captured.has_graph for captured in self._captured.values())

    def _prepare(self) -> None:
        """Look at the model once its cache is bound, which tells the block size."""
        self._is_prepared = True
        model = self._model
        if isinstance(model, LlamaForCausalLM):
            self._block_size = model.decoder_layers()[0].self_attn.kv_cache[0].shape[1]
        reasons = why_no_decode_step(model, self._block_size)
        if reasons or not isinstance(model, LlamaForCausalLM):
            logger.info("Decode steps run eagerly: %s.", "; ".join(reasons))
            return
        self._step = LlamaDecodeStep(model)
        self._buffers = DecodeBuffers(self._max_rows, model.args.vocab_size, self._device)
        self._drawing = (Drawing(self._max_rows, self._device), Drawing(self._max_rows, self._device))


class Drawing:
    """Memory of a step that draws tokens: options on their way to the device, results on their way back."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.options = OptionsUpload(max_rows, device)
        self.logprobs = torch.zeros(max_rows, dtype=torch.float32, device=device)
        self.host_token_ids = torch.zeros(max_rows, dtype=torch.int32, device="cpu").pin_memory()
        self.host_logprobs = torch.zeros(max_rows, dtype=torch.float32, device="cpu").pin_memory()


class GraphRows:
    """`DecodedRows` in the buffers of the executor, where the next step overwrites them."""

    def __init__(self, buffers: DecodeBuffers, captured: CapturedDecode, drawing: Drawing, num_rows: int) -> None:
        self._buffers = buffers
        self._captured = captured
        self._drawing = drawing
        self._num_rows = num_rows

    @torch.inference_mode()
    def start(self, rows: SamplingRows) -> PendingOutput | None:
        """See `DecodedRows.start`."""
        if takes_most_probable(rows):
            return GraphOutput(self._captured.host_results, None, self._num_rows, rows)
        if not is_drawn_as_it_is(rows) or why_no_draw(self._buffers.logits) is not None:
            return None
        num_rows, drawing = self._num_rows, self._drawing
        logits, token_ids, best = self._buffers.outputs(len(self._captured.host_results) // 2)
        logprobs = drawing.logprobs[:num_rows] if (rows.num_logprobs >= 0).any() else None
        token_ids = token_ids[:num_rows]
        draw_tokens(logits[:num_rows], token_ids, best[:num_rows], drawing.options.send(rows), token_ids, logprobs)
        drawing.host_token_ids[:num_rows].copy_(token_ids, non_blocking=True)
        if logprobs is not None:
            drawing.host_logprobs[:num_rows].copy_(logprobs, non_blocking=True)
        return GraphOutput(self._captured.host_results, drawing, num_rows, rows)

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """See `DecodedRows.logits`."""
        return self._buffers.logits[: self._num_rows].float()


class GraphOutput:
    """`PendingOutput` of a step whose results are on their way to `host_results`, and to `drawing` where tokens are drawn."""

    is_on_device = True

    def __init__(self, host_results: torch.Tensor, drawing: Drawing | None, num_rows: int, rows: SamplingRows) -> None:
        self._host_results = host_results
        self._drawing = drawing
        self._num_rows, self._rows = num_rows, rows
        self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._end.record()
        self._output: ForwardOutput | None = None

    def wait(self) -> ForwardOutput:
        """See `PendingOutput.wait`."""
        if self._output is None:
            self._end.synchronize()
            self._output = self._read()
        return self._output

    def _read(self) -> ForwardOutput:
        num_rows, drawing = self._num_rows, self._drawing
        results = self._host_results.numpy().reshape(2, -1)[:, :num_rows].copy()
        best = results[1].view(np.float32)
        if drawing is None:
            return most_probable_output(results[0], best)
        output = most_probable_output(drawing.host_token_ids[:num_rows].numpy().copy(), best)
        asked = (self._rows.num_logprobs >= 0) & (output.token_ids >= 0)
        if (self._rows.num_logprobs >= 0).any():
            output.logprobs = np.where(asked, drawing.host_logprobs[:num_rows].numpy(), np.float32(0))
        return output
