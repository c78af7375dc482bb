"""One rank of a language model: from a `ForwardInput` to a `ForwardOutput`.

What may not be added here: anything about requests, text or scheduling; how a model is built or weights are read
(`loading`), how large the cache is (`kv_cache`), how the forward pass runs (an executor), how a token is chosen
(`sampling`); a branch for one model, one device or one feature. `execute` stays a list of what happens, in order.
"""

from __future__ import annotations

import sys
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.batch.placeholders import replace_placeholders
from xllm_framework.config import ModelConfig, XLLMConfig
from xllm_framework.kv_cache import BlockMoves
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.auto_config import largest_chunk, max_model_len
from xllm_runtime.executor.interface import FinishedOutput, PendingOutput
from xllm_runtime.executor.selection import select_executor
from xllm_runtime.memory.block_payloads import payload_bytes, read_payloads, write_payloads
from xllm_runtime.memory.host_blocks import HostBlocks, KVTensors
from xllm_runtime.models.interface import HasStates
from xllm_runtime.models.registry import ModelChoice, select_model, with_kv_dtype
from xllm_runtime.platform import select_platform
from xllm_runtime.platform.uploads import upload
from xllm_runtime.sampling.logprob_rows import LogprobRows
from xllm_runtime.sampling.logprobs import prompt_logprobs
from xllm_runtime.sampling.pooling import pool
from xllm_runtime.sampling.sampler import sample
from xllm_runtime.worker.block_copy import copy_blocks, copy_states
from xllm_runtime.worker.client import PutPayload
from xllm_runtime.worker.kv_cache import (
    CacheDemand,
    block_bytes,
    num_blocks_that_fit,
    num_state_slots_that_fit,
    state_bytes,
)
from xllm_runtime.worker.kv_tensors import allocate, allocate_states
from xllm_runtime.worker.layer_binding import bind_layers, state_shapes
from xllm_runtime.worker.loading import KV_DTYPES, load_model, select_dtype


class LLMWorker:
    """A model with its KV cache on one device. See `Worker` for what each method promises.

    Raises:
        InvalidConfig: the device cannot be used, or the cache has no room.
        ModelLoadError: the model cannot be loaded, or no implementation serves it.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        self._config = config
        self._platform = select_platform(config.model.device)
        self._platform.set_threads(config.execution.threads)
        kv_dtype = KV_DTYPES[config.kv_cache.kv_cache_dtype]
        choice = with_kv_dtype(self.choose_model(args, config.model), kv_dtype)
        dtype = select_dtype(config.model, args, self._platform)
        self._model = load_model(choice, files, args, config.load, dtype, self._platform.device)
        self._executor = select_executor(
            self._model,
            self._platform,
            config.scheduler.max_num_seqs,
            is_overlapped=config.scheduler.enable_schedule_overlap,
        )
        longest = max_model_len(config, args, sys.maxsize)
        self._binding = bind_layers(self._model, args, longest)
        self.cache_layout = self._binding.layout
        self._demand = CacheDemand(
            longest, config.scheduler.max_num_seqs, self.cache_layout, largest_chunk(config.scheduler)
        )
        self._caches: KVTensors = []
        self._states: list[torch.Tensor] = []
        self._host: HostBlocks | None = None
        self._put_payload: PutPayload | None = None
        self.model_impl = choice.model_impl
        self.device = str(self._platform.device)
        self.dtype = str(dtype).removeprefix("torch.")
        self.vocab_size = args.vocab_size
        self.can_copy_blocks = True

    def num_state_slots_that_fit(self) -> int:
        """See `Worker.num_state_slots_that_fit`."""
        shapes = state_shapes(self._model)
        return num_state_slots_that_fit(
            self._config.kv_cache, self._demand, state_bytes(shapes), self._platform.memory()
        )

    def allocate_states(self, num_slots: int) -> None:
        """See `Worker.allocate_states`."""
        self._states = allocate_states(state_shapes(self._model), num_slots, self._platform)
        cast("HasStates", self._model).bind_states(self._states)

    def choose_model(self, args: ModelArgs, config: ModelConfig) -> ModelChoice:
        """Return the implementation; raises `UnsupportedModel` with every reason where none fits."""
        return select_model(args, config)

    def num_blocks_that_fit(self, block_size: int) -> int:
        """See `Worker.num_blocks_that_fit`; what the weights take is known, for they are loaded."""
        shapes, config = self._binding.shapes, self._config.kv_cache
        is_cpu = self._platform.name == "cpu"
        num_bytes = block_bytes(shapes, block_size)
        return num_blocks_that_fit(config, self._demand, num_bytes, block_size, self._platform.memory(), is_cpu=is_cpu)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Worker.allocate_kv_cache`."""
        self._caches = allocate(self._binding.shapes, num_blocks, block_size, self._platform)
        self._model.bind_kv_cache([self._caches[place] for place in self._binding.tensor_of])

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """See `Worker.allocate_host_blocks`."""
        self._host = HostBlocks(self._caches, num_host_blocks)

    def attach_archive(self, put: PutPayload) -> None:
        """See `Worker.attach_archive`."""
        self._put_payload = put

    def payload_bytes(self) -> int:
        """See `Worker.payload_bytes`."""
        return payload_bytes(self._caches)

    @torch.inference_mode()
    def move_blocks(self, moves: BlockMoves) -> None:
        """See `Worker.move_blocks`."""
        if moves.to_archive and self._put_payload is not None:
            payloads = read_payloads(self._caches, [block for block, _ in moves.to_archive])
            for (_, key), payload in zip(moves.to_archive, payloads, strict=True):
                self._put_payload(key, payload)
        if self._host is not None:
            self._host.move(moves)
        copy_states(self._states, moves.states)
        write_payloads(self._caches, moves.from_archive)

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """See `Worker.execute`."""
        return self.begin(forward_input, None).wait()

    @torch.inference_mode()
    def begin(self, forward_input: ForwardInput, before: PendingOutput | None) -> PendingOutput:
        """Start a step that may hold tokens of the step `before`, still under way, as placeholders.

        Returns at once where the device can go on alone; else the step has ended. Nothing but KV in the input's slots changes.
        """
        if before is not None and not before.is_on_device:
            replace_placeholders(forward_input, before.wait().token_ids)
        copy_blocks(self._caches, forward_input.block_copies)
        decoded = self._executor.decode(forward_input)
        pending = None if decoded is None else decoded.start(forward_input.sampling)
        if pending is not None:
            return pending
        if before is not None and before.is_on_device:
            replace_placeholders(forward_input, before.wait().token_ids)
        if decoded is not None:
            return FinishedOutput(sample(decoded.logits(), forward_input.sampling))
        return FinishedOutput(self._compute(forward_input))

    def _compute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Forward, logits of the sampled rows, tokens; then what was asked for of prompts."""
        hidden = self._executor.forward(forward_input)
        logits = self._model.compute_logits(hidden[self._to_device(forward_input.sample_rows)])
        output = sample(logits, forward_input.sampling)
        if forward_input.prompt_logprobs:
            output.prompt_logprobs = {**self._prompt_logprobs(forward_input, hidden)}
        if forward_input.pooled:
            output.pooled = pool(hidden, forward_input.pooled, self._model.compute_logits)
        return output

    def _prompt_logprobs(self, forward_input: ForwardInput, hidden: torch.Tensor) -> dict[int, LogprobRows]:
        """Return the log-probabilities of the prompt tokens that were asked for, by scheduled sequence."""
        found = {}
        for index, num_top, token_ids in forward_input.prompt_logprobs:
            rows = hidden[forward_input.query_start[index] :][: len(token_ids)]
            targets = self._to_device(token_ids.astype(np.int64))
            found[index] = prompt_logprobs(self._model.compute_logits, rows, targets, num_top, self.vocab_size)
        return found

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return `array` on the device, which is not waited for."""
        return upload([array], self._platform.device)[0]
