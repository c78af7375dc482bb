"""One rank of a language model in C++, without torch: from a `ForwardInput` to a `ForwardOutput`.

What may not be added here: anything about requests, text or scheduling; how weights are read (`native_loading`), how
large the cache is (`kv_cache`), how a token is chosen (`sampling.native`), how a model is computed (xllm-kernels).
"""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.kv_cache import BlockMoves, CacheLayout
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.auto_config import cache_window, max_model_len
from xllm_runtime.memory.native_blocks import NativeBlocks
from xllm_runtime.models.native import compute_dtype
from xllm_runtime.platform.cpu_cores import set_kernel_threads
from xllm_runtime.platform.cpu_memory import main_memory
from xllm_runtime.sampling.broken_rows import NOT_FINITE
from xllm_runtime.sampling.logprob_rows import LogprobRows
from xllm_runtime.sampling.most_probable import takes_most_probable
from xllm_runtime.sampling.native import sample, token_logprobs
from xllm_runtime.worker.client import PutPayload
from xllm_runtime.worker.kv_cache import CacheDemand, num_blocks_that_fit
from xllm_runtime.worker.native_loading import load_decoder

MAX_LOGITS = 2**24
"""Numbers of one slice of logits, 64 MiB."""
KV_TYPES: dict[str, tuple[Literal["f32", "bf16"], int]] = {"float32": ("f32", 4), "bfloat16": ("bf16", 2)}
"""xllm-kernels' names of types, and bytes of a number."""


class NativeWorker:
    """A model with its KV cache on the CPU. See `Worker` for what each method promises.

    Raises:
        InvalidConfig: an option cannot be met on this machine.
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        set_kernel_threads(config.execution.threads)
        self._config = config
        self._args = args
        longest = max_model_len(config, args, sys.maxsize)
        self._demand = CacheDemand(longest, config.scheduler.max_num_seqs)
        self._decoder = load_decoder(config, files, args, longest, self.language_name)
        self._blocks = NativeBlocks(self._decoder)
        self.model_impl = "native"
        self.device = "cpu"
        self.dtype: str = compute_dtype(args, config.model, files)
        self.vocab_size = args.vocab_size
        self.can_copy_blocks = True
        self.cache_layout = CacheLayout((cache_window(args),))

    def num_state_slots_that_fit(self) -> int:
        """Return 0: there is no linear state."""
        return 0

    def allocate_states(self, num_slots: int) -> None:
        """Do nothing: there is no linear state."""

    @staticmethod
    def language_name(name: str) -> str | None:
        """Return what the decoder calls a tensor of the checkpoint; None for one that it does not take."""
        return name

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`; what the weights take is known, for they are loaded."""
        args, item_bytes = self._args, KV_TYPES[self.dtype][1]
        block_bytes = 2 * args.num_layers * args.num_kv_heads * args.head_dim * item_bytes * block_size
        config = self._config.kv_cache
        return num_blocks_that_fit(config, self._demand, max(block_bytes, 1), block_size, main_memory(), is_cpu=True)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`; pages are taken when tokens first use them."""
        self._decoder.allocate_kv_cache(num_blocks, block_size, KV_TYPES[self.dtype][0])

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """See `Worker.allocate_host_blocks`."""
        self._blocks.allocate_host(num_host_blocks)

    def attach_archive(self, put: PutPayload) -> None:
        """See `Worker.attach_archive`."""
        self._blocks.put_payload = put

    def payload_bytes(self) -> int:
        """See `Worker.payload_bytes`."""
        return self._decoder.num_block_bytes

    def move_blocks(self, moves: BlockMoves) -> None:
        """See `Worker.move_blocks`."""
        self._blocks.move(moves)

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Block copies, then forward and tokens in one call, or logits and tokens."""
        self._copy_blocks(forward_input)
        if forward_input.prompt_logprobs or forward_input.pooled:
            return self._execute_with_hidden(forward_input)
        if takes_most_probable(forward_input.sampling):
            return self._execute_greedy(forward_input)
        logits = self._decoder.forward(*step_arrays(forward_input), forward_input.sample_rows)
        return sample(logits, forward_input.sampling)

    def _copy_blocks(self, forward_input: ForwardInput) -> None:
        if forward_input.block_copies:
            self._decoder.copy_blocks(np.array(forward_input.block_copies, np.int32))

    def _execute_greedy(self, forward_input: ForwardInput) -> ForwardOutput:
        token_ids = self._decoder.greedy(*step_arrays(forward_input), forward_input.sample_rows)
        if token_ids.min(initial=0) >= 0:
            return ForwardOutput(token_ids)
        return ForwardOutput(token_ids, errors=dict.fromkeys(np.flatnonzero(token_ids < 0).tolist(), NOT_FINITE))

    def _execute_with_hidden(self, forward_input: ForwardInput) -> ForwardOutput:
        """Compute hidden states once; then tokens, prompts' log-probabilities a slice of logits at a time, and vectors."""
        wanted, pooled = forward_input.prompt_logprobs, forward_input.pooled
        starts = [int(forward_input.query_start[index]) for index, _, _ in wanted]
        rows = [forward_input.sample_rows]
        rows += [np.arange(start, start + len(ids)) for start, (_, _, ids) in zip(starts, wanted, strict=True)]
        rows += [np.arange(part.first, part.end) for part in pooled]
        hidden = self._hidden(forward_input, np.concatenate(rows))
        sampled, *parts = np.split(hidden, np.cumsum([len(part) for part in rows])[:-1])
        output = sample(self._decoder.logits(sampled), forward_input.sampling)
        if wanted:
            output.prompt_logprobs = {
                index: self._logprobs_of(part, token_ids, num_top)
                for (index, num_top, token_ids), part in zip(wanted, parts[: len(wanted)], strict=True)
            }
        output.pooled = {
            part.index: self._decoder.logits(vectors)[0, list(part.logit_ids)] if part.logit_ids else vectors.sum(0)
            for part, vectors in zip(pooled, parts[len(wanted) :], strict=True)
        }
        return output

    def _hidden(self, forward_input: ForwardInput, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the hidden states [R, hidden] of `rows` of a step."""
        return self._decoder.hidden(*step_arrays(forward_input), rows)

    def _logprobs_of(
        self, hidden: npt.NDArray[np.float32], token_ids: npt.NDArray[np.int32], num_top: int
    ) -> LogprobRows:
        """Return the log-probabilities of `token_ids` [T] behind the hidden states [T, hidden]."""
        step = max(1, MAX_LOGITS // self.vocab_size)
        return LogprobRows.concatenate(
            [
                token_logprobs(
                    self._decoder.logits(hidden[start : start + step]), token_ids[start : start + step], num_top
                )
                for start in range(0, len(token_ids), step)
            ]
        )


class StepArrays(NamedTuple):
    """What the decoder takes before `rows`; see `ForwardInput`."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]


def step_arrays(step: ForwardInput) -> StepArrays:
    """Return the arrays of a step in the decoder's order."""
    return StepArrays(
        step.token_ids, step.positions, step.slot_mapping, step.query_start, step.seq_lens, step.block_tables
    )
