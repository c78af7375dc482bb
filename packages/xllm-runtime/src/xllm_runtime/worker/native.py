"""One rank of a language model in C++, without torch: from a `ForwardInput` to a `ForwardOutput`.

What may not be added here: anything about requests, text or scheduling; how weights are read (`native_loading`), how
large the cache is (`kv_cache`), how a token is chosen (`sampling.arrays`), how a model is computed (xllm-kernels).
"""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import BlockMoves
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.auto_config import max_model_len
from xllm_runtime.models.native import compute_dtype
from xllm_runtime.platform.cpu_cores import set_kernel_threads
from xllm_runtime.platform.cpu_memory import main_memory
from xllm_runtime.sampling.arrays.logprobs import token_logprobs
from xllm_runtime.sampling.arrays.sampler import sample
from xllm_runtime.sampling.broken_rows import NOT_FINITE
from xllm_runtime.sampling.logprob_rows import LogprobRows
from xllm_runtime.sampling.most_probable import takes_most_probable
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
        self._decoder = load_decoder(config, files, args, longest)
        self.model_impl = "native"
        self.device = "cpu"
        self.dtype: str = compute_dtype(args, config.model, files)
        self.vocab_size = args.vocab_size
        self.can_copy_blocks = False

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
        """Raise `InvalidConfig`: see `can_copy_blocks`."""
        raise InvalidConfig("host_blocks_factor must be 0: the native implementation cannot move its blocks.")

    def move_blocks(self, moves: BlockMoves) -> None:
        """Raise `InvalidConfig`: see `can_copy_blocks`."""
        raise InvalidConfig(f"The native implementation cannot move its blocks ({moves}).")

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Forward and tokens in one call, or logits and tokens; then what was asked for of prompts."""
        if forward_input.pooled:
            output = self._execute_pooling(forward_input)
        elif takes_most_probable(forward_input.sampling):
            output = self._execute_greedy(forward_input)
        else:
            logits = self._decoder.forward(*_arrays(forward_input), forward_input.sample_rows)
            output = sample(logits, forward_input.sampling)
        if forward_input.prompt_logprobs:
            output.prompt_logprobs = {**self._prompt_logprobs(forward_input)}
        return output

    def _execute_pooling(self, forward_input: ForwardInput) -> ForwardOutput:
        """Compute the hidden states of all rows that somebody wants; then tokens, and what prompts are pooled from."""
        sampled, pooled = forward_input.sample_rows, forward_input.pooled
        wanted = np.concatenate([sampled, *(np.arange(rows.first, rows.end) for rows in pooled)])
        hidden = self._decoder.hidden(*_arrays(forward_input), wanted)
        output = sample(self._decoder.logits(hidden[: len(sampled)]), forward_input.sampling)
        output.pooled = {}
        row = len(sampled)
        for rows in pooled:
            part = hidden[row : row + rows.end - rows.first]
            row += len(part)
            logit_ids = list(rows.logit_ids)
            output.pooled[rows.index] = self._decoder.logits(part)[0, logit_ids] if logit_ids else part.sum(0)
        return output

    def _execute_greedy(self, forward_input: ForwardInput) -> ForwardOutput:
        token_ids = self._decoder.greedy(*_arrays(forward_input), forward_input.sample_rows)
        if token_ids.min(initial=0) >= 0:
            return ForwardOutput(token_ids)
        return ForwardOutput(token_ids, errors=dict.fromkeys(np.flatnonzero(token_ids < 0).tolist(), NOT_FINITE))

    def _prompt_logprobs(self, forward_input: ForwardInput) -> dict[int, LogprobRows]:
        """Return the log-probabilities of the prompt tokens that were asked for, by scheduled sequence.

        The tokens are computed again, a slice at a time, so that logits of a slice only exist: a token's do not depend
        on how a prompt is cut.
        """
        found = {}
        step = max(1, MAX_LOGITS // self.vocab_size)
        for index, num_top, token_ids in forward_input.prompt_logprobs:
            parts = []
            for start in range(0, len(token_ids), step):
                targets = token_ids[start : start + step]
                part = _part_of(forward_input, index, start, len(targets))
                logits = self._decoder.forward(*part, np.arange(len(targets)))
                parts.append(token_logprobs(logits, targets, num_top))
            found[index] = LogprobRows.concatenate(parts)
        return found


class _Arrays(NamedTuple):
    """What the decoder takes before `rows`; see `ForwardInput`."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]


def _arrays(step: ForwardInput) -> _Arrays:
    return _Arrays(
        step.token_ids, step.positions, step.slot_mapping, step.query_start, step.seq_lens, step.block_tables
    )


def _part_of(step: ForwardInput, index: int, start: int, num_tokens: int) -> _Arrays:
    """Return tokens `start` to `start + num_tokens` of scheduled sequence `index` as a step of their own."""
    first = int(step.query_start[index]) + start
    rows = slice(first, first + num_tokens)
    return _Arrays(
        step.token_ids[rows],
        step.positions[rows],
        step.slot_mapping[rows],
        np.array([0, num_tokens], np.int32),
        step.positions[rows.stop - 1 : rows.stop] + 1,
        step.block_tables[index : index + 1],
    )
