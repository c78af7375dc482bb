"""The engine of a recommender: one worker, several pipelines over it, and the arrays of a batch.

What may not be added here: who runs next (the scheduler), how a round is computed (the worker), which catalogue is served and
what a failure means for a request (the master).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.prompt_steps import TokenStretch, build_steps
from xllm_framework.batch.search_batch import DrawRows, SearchBatch
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.rec.valid_paths import ValidPaths
from xllm_framework.request.rec_messages import InputTensor, SearchParams
from xllm_framework.request.sequence import Sequence
from xllm_runtime.auto_config import max_model_len
from xllm_runtime.worker.rec_selection import start_rec_worker


@dataclass(frozen=True, slots=True)
class SearchedPrompt:
    """One search of a batch: its prompt with blocks, and how candidates are found."""

    sequence: Sequence
    params: SearchParams
    seed: int
    tensors: tuple[InputTensor, ...] = ()


class RecEngine:
    """Loads the model, agrees on a pool, and opens the pipelines.

    Raises:
        ModelLoadError: the model cannot be loaded.
        InvalidConfig: an option cannot be met on this machine.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        worker = start_rec_worker(config, files, args)
        self.block_size = config.kv_cache.block_size
        self.num_blocks = worker.num_blocks_that_fit(self.block_size)
        """Blocks of the pool, padding block 0 included."""
        self.max_model_len = max_model_len(config, args, (self.num_blocks - 1) * self.block_size)
        """Tokens of prompt and path together."""
        worker.allocate_kv_cache(self.num_blocks, self.block_size)
        self.searchers = [worker.open_searcher() for _ in range(config.rec.rec_worker_max_concurrency)]
        """The pipelines; each is for one thread at a time."""
        self.model_impl, self.device, self.dtype = worker.model_impl, worker.device, worker.dtype
        self.vocab_size = worker.vocab_size
        self._max_tokens = config.scheduler.max_num_batched_tokens

    def batch(self, prompts: list[SearchedPrompt], paths: ValidPaths | None) -> SearchBatch:
        """Return the arrays of searches that run together."""
        tables = [np.array(prompt.sequence.block_table, np.int32) for prompt in prompts]
        block_tables = np.zeros((len(tables), max(len(table) for table in tables)), np.int32)
        for row, table in enumerate(tables):
            block_tables[row, : len(table)] = table
        stretches = [
            TokenStretch(prompt.sequence.token_ids, prompt.sequence.num_cached_tokens, table)
            for prompt, table in zip(prompts, tables, strict=True)
        ]
        first = prompts[0].params
        return SearchBatch(
            prefills=build_steps(stretches, self.block_size, self._max_tokens),
            prompt_lens=np.array([prompt.sequence.num_tokens for prompt in prompts], np.int32),
            block_tables=block_tables,
            prompts=[prompt.sequence.token_ids for prompt in prompts],
            widths=np.array([prompt.params.beam_width for prompt in prompts], np.int32),
            num_rounds=first.num_rounds,
            paths=paths,
            draws=[_draw_rows(prompt) for prompt in prompts] if first.is_sampled else [],
            tensors=[_arrays(prompt.tensors) for prompt in prompts],
        )


def _arrays(tensors: tuple[InputTensor, ...]) -> dict[str, npt.NDArray[np.generic]]:
    return {
        tensor.name: np.frombuffer(bytearray(tensor.content), np.dtype(tensor.dtype)).reshape(tensor.shape)
        for tensor in tensors
    }


def _draw_rows(prompt: SearchedPrompt) -> DrawRows:
    params = prompt.params
    return DrawRows(params.temperature, params.top_k, params.top_p, prompt.seed)
