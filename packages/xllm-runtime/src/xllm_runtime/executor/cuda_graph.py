"""Runs decode steps from CUDA graphs, everything else eagerly.

A graph serves all steps of one padded batch size and table width (`decode_buckets`) and holds the whole step, from token ids to
the most probable tokens, at fixed addresses. It is captured when its size has been seen once, so that serving begins at once.
Knows nothing of requests; rows with other wishes than the most probable token get the logits.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.executor.cuda_graph_decode import CapturedDecode, DecodeBuffers
from xllm_runtime.executor.decode_buckets import row_bucket, width_bucket
from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.executor.interface import DecodedRows
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.llama_cuda import LlamaDecodeStep, why_no_decode_step

MAX_ROWS = 512
"""Steps of more sequences run eagerly."""

logger = logging.getLogger(__name__)


class CUDAGraphExecutor(EagerExecutor):
    """Runs `model` on GPU `device`, with up to `max_num_seqs` sequences a step."""

    def __init__(self, model: CausalLM, device: torch.device, max_num_seqs: int) -> None:
        super().__init__(model, device)
        self._max_rows = row_bucket(min(max_num_seqs, MAX_ROWS))
        self._step: LlamaDecodeStep | None = None
        self._buffers: DecodeBuffers | None = None
        self._captured: dict[tuple[int, int], CapturedDecode] = {}
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
        if self._step is None or self._buffers is None:
            return None
        num_blocks = -(-int(forward_input.seq_lens.max()) // self._block_size)
        key = row_bucket(num_rows), width_bucket(num_blocks)
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = CapturedDecode(self._step, self._buffers, *key, self._block_size)
        captured.run(forward_input)
        return GraphRows(self._buffers, num_rows, key[0])

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


class GraphRows:
    """`DecodedRows` in the buffers of the executor, where the next step overwrites them."""

    def __init__(self, buffers: DecodeBuffers, num_rows: int, num_padded_rows: int) -> None:
        self._buffers = buffers
        self._num_rows, self._num_padded_rows = num_rows, num_padded_rows

    def most_probable(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See `DecodedRows.most_probable`."""
        token_ids, best = self._buffers.read_results(self._num_padded_rows)
        return token_ids[: self._num_rows], best[: self._num_rows]

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """See `DecodedRows.logits`."""
        return self._buffers.logits[: self._num_rows].float()
