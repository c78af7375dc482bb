"""Searches with an encoder-decoder (OneRec). Keeps nothing between batches: histories are encoded, paths decoded anew each round.

Knows nothing of how tokens are chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch.search_batch import SearchBatch
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_framework.rec.onerec_args import onerec_args
from xllm_framework.request.rec_messages import DECODER_CONTEXT, SPARSE_EMBEDDING
from xllm_runtime.auto_config import max_model_len
from xllm_runtime.models.rec.onerec import Memory, OneRecModel
from xllm_runtime.platform import select_platform
from xllm_runtime.weights.dummy import fill_dummy_weights
from xllm_runtime.weights.safetensors_file import folder_weights
from xllm_runtime.worker.loading import select_dtype
from xllm_runtime.worker.rec import Beams, Float32s, Searcher
from xllm_runtime.worker.rec_host import HostSearcher


class OneRecWorker:
    """A `RecWorker` over a `OneRecModel`. Needs no paged cache; blocks only count how much may run at once.

    Raises:
        InvalidConfig: the device cannot be used.
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        self._config = config
        platform = select_platform(config.model.device)
        platform.set_threads(config.execution.threads)
        self._device = platform.device
        self._dtype = select_dtype(config.model, args, platform)
        with torch.device(self._device):
            self._model = OneRecModel(onerec_args(args), self._dtype)
        if config.load.load_format == "dummy":
            fill_dummy_weights(self._model)
        else:
            self._model.load_weights(folder_weights(files.path))
        self._model.eval().requires_grad_(False)
        self._max_len = max_model_len(config, args, args.max_position_embeddings)
        self.model_impl = "python"
        self.device = str(self._device)
        self.dtype = str(self._dtype).removeprefix("torch.")
        self.vocab_size = args.vocab_size

    def num_blocks_that_fit(self, block_size: int) -> int:
        """Return blocks for as many full histories as may run at once."""
        count = self._config.kv_cache.num_blocks
        return count or 1 + self._config.scheduler.max_num_seqs * -(-self._max_len // block_size)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Do nothing: histories are kept for the length of a batch only."""

    def open_searcher(self) -> Searcher:
        """See `RecWorker.open_searcher`."""
        return HostSearcher(OneRecBeamModel(self._model, self._device, self._dtype), self._config.rec)


class OneRecBeamModel:
    """A `BeamModel` over an encoder-decoder."""

    def __init__(self, model: OneRecModel, device: torch.device, dtype: torch.dtype) -> None:
        self._model = model
        self._device = device
        self._dtype = dtype
        self._memories: list[Memory] = []
        self._contexts: list[torch.Tensor | None] = []

    @torch.inference_mode()
    def prefill(self, batch: SearchBatch) -> Float32s:
        """See `BeamModel.prefill`."""
        self._memories, self._contexts = [], []
        for prompt, tensors in zip(batch.prompts, batch.tensors, strict=True):
            sparse, context = tensors.get(SPARSE_EMBEDDING), tensors.get(DECODER_CONTEXT)
            history = self._model.embed(self._ids(prompt)) if sparse is None else self._floats(sparse)
            self._memories.append(self._model.encode(history))
            self._contexts.append(None if context is None else self._floats(context))
        return self._decode([np.empty((1, 0), np.int32)] * batch.num_requests)

    @torch.inference_mode()
    def step(self, batch: SearchBatch, beams: Beams) -> Float32s:
        """See `BeamModel.step`."""
        bounds = zip(beams.row_start[:-1].tolist(), beams.row_start[1:].tolist(), strict=True)
        return self._decode([beams.token_ids[begin:end] for begin, end in bounds])

    def _decode(self, paths_of: list[npt.NDArray[np.int32]]) -> Float32s:
        """Return the logits behind the paths of each search, all rows in order."""
        start = self._model.args.decoder_start_token_id
        parts = []
        for paths, memory, context in zip(paths_of, self._memories, self._contexts, strict=True):
            if len(paths):
                rows = np.concatenate([np.full((len(paths), 1), start, np.int32), paths], axis=1)
                parts.append(self._model.decode(self._ids(rows), memory, context))
        logits: Float32s = torch.cat(parts).cpu().numpy()
        return logits

    def _ids(self, array: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)

    def _floats(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, self._dtype)
