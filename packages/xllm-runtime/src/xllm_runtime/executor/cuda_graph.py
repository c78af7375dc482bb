"""Runs decode steps from CUDA graphs, and in pieces the prompts that are too short to keep a GPU busy; everything else eagerly.

A decode graph serves all steps of one padded batch size and table width (`decode_buckets`) and holds the whole step, from token ids to
the most probable tokens, at fixed addresses. Serving begins at once: what has no graph yet runs eagerly. Graphs are captured behind the
traffic, one at a time while the device computes a step that was just started: only sizes that ran eagerly before, so that every kernel
and workspace is there, which cannot be made during a capture.
Knows nothing of requests; rows with other wishes than the most probable token get the logits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.executor.captured_graph import GraphMemory
from xllm_runtime.executor.cuda_graph_decode import CapturedDecode, DecodeBuffers
from xllm_runtime.executor.cuda_graph_output import DeviceRows, Drawing
from xllm_runtime.executor.cuda_graph_prompts import PromptGraphs, prompt_bucket
from xllm_runtime.executor.decode_buckets import row_bucket, width_bucket
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.executor.interface import DecodedRows
from xllm_runtime.executor.step_tensors import StepTensors
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.decode_step import select_decode_step
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.llama_cuda import LlamaDecodeStep
from xllm_runtime.models.llm.llama_wide_cuda import LlamaWideStep, is_wide

MAX_ROWS = 512
"""Steps of more sequences run eagerly."""

DecodeKey = tuple[int, int, int]
"""Rows, width of the block table, and which of two sets of host memory."""

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
        self._step: LlamaDecodeStep | LlamaWideStep | None = None
        self._buffers: DecodeBuffers | None = None
        self._drawing: tuple[Drawing, Drawing] | None = None
        self._captured: dict[DecodeKey, CapturedDecode] = {}
        self._met: set[DecodeKey | int] = set()
        """Decode steps and buckets of prompts that came up."""
        self._wanted: deque[Callable[[], None]] = deque()
        """Captures that wait for their turn."""
        self._memory = GraphMemory(device)
        self._prompts: PromptGraphs | None = None
        self._is_prepared = False
        self._block_size = 0

    @torch.inference_mode()
    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`."""
        asks_for_more = forward_input.prompt_logprobs or forward_input.pooled or forward_input.media is not None
        if asks_for_more or len(forward_input.sample_rows) > self._max_rows:
            return None
        if not self._is_prepared:
            self._prepare()
        if self._step is None or self._buffers is None or self._drawing is None:
            return None
        num_rows = forward_input.num_sequences
        if self._is_overlapped:
            self._turn = 1 - self._turn
        if forward_input.max_query_len > 1 or len(forward_input.sample_rows) < num_rows:
            return self._start_prompts(self._step, self._buffers, self._drawing[self._turn], forward_input)
        num_blocks = -(-int(forward_input.seq_lens.max()) // self._block_size)
        key = row_bucket(num_rows), width_bucket(num_blocks), self._turn
        captured = self._decode_graph(self._step, self._buffers, key)
        captured.run(forward_input)
        self._meet(key, captured)
        if self._wanted:  # the device is busy
            self._wanted.popleft()()
        drawing = self._drawing[self._turn]
        return DeviceRows(
            self._buffers, captured.host_results, drawing, num_rows, lambda: captured.token_ids[:num_rows]
        )

    def compute(self, step: StepTensors) -> torch.Tensor:
        """See `EagerExecutor.compute`."""
        bucket = prompt_bucket(len(step.token_ids))
        if not self._is_prepared:
            self._prepare()
        if self._prompts is None or bucket is None:
            return super().compute(step)
        if bucket not in self._met:
            self._met.add(bucket)
            self._wanted.append(partial(self._capture_prompt, bucket))
        else:
            self._capture_prompt(bucket)
        hidden = self._prompts.run(step)
        return super().compute(step) if hidden is None else hidden

    @property
    def num_graphs(self) -> int:
        """How many batch sizes are replayed by now."""
        return sum(captured.has_graph for captured in self._captured.values())

    def _start_prompts(
        self,
        step: LlamaDecodeStep | LlamaWideStep,
        buffers: DecodeBuffers,
        drawing: Drawing,
        forward_input: ForwardInput,
    ) -> DeviceRows:
        """Start a step with prompts or chunks in it; its tokens stay on the device, too, for the step after."""
        from xllm_kernels.cuda.sampling import replace_placeholders

        num_rows, tensors = len(forward_input.sample_rows), self.upload(forward_input)
        if (forward_input.token_ids < 0).any():
            replace_placeholders(tensors.token_ids, buffers.results[: buffers.max_rows])
        hidden = self.compute(tensors)
        if num_rows:
            step.choose(hidden[tensors.sample_rows], *buffers.outputs(num_rows))
        results = drawing.host_results[: 2 * num_rows].copy_(buffers.results[: 2 * num_rows], non_blocking=True)
        return DeviceRows(buffers, results, drawing, num_rows, lambda: tensors.token_ids[tensors.sample_rows])

    def _decode_graph(
        self, step: LlamaDecodeStep | LlamaWideStep, buffers: DecodeBuffers, key: DecodeKey
    ) -> CapturedDecode:
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = CapturedDecode(
                step, buffers, *key[:2], self._block_size, takes_placeholders=self._is_overlapped
            )
        return captured

    def _meet(self, key: DecodeKey, captured: CapturedDecode) -> None:
        """See to it that a size that came up for the first time is captured next."""
        if key not in self._met:
            self._met.add(key)
            self._wanted.appendleft(captured.capture)

    def _capture_prompt(self, bucket: int) -> None:
        if self._prompts is not None and not self._prompts.has(bucket):
            self._prompts.capture(bucket)

    def _prepare(self) -> None:
        """Look at the model once its cache is bound, which tells the block size."""
        self._is_prepared = True
        model = self._model
        if isinstance(model, LlamaForCausalLM):
            self._block_size = model.decoder_layers()[0].self_attn.kv_cache[0].shape[1]
            if model.embed_tokens.weight.dtype.itemsize == 2 and not is_wide(model):
                self._prompts = PromptGraphs(model, self._memory)
        step, reasons = select_decode_step(model, self._block_size)
        if step is None or not isinstance(model, LlamaForCausalLM):
            logger.info("Decode steps run eagerly: %s.", "; ".join(reasons))
            return
        self._step = step
        self._buffers = DecodeBuffers(
            self._max_rows, model.args.vocab_size, model.embed_tokens.weight.dtype, self._memory
        )
        self._drawing = (Drawing(self._max_rows, self._device), Drawing(self._max_rows, self._device))
