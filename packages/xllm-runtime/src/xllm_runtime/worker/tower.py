"""One rank of a vision tower alone, for the task mm_embed: no language model is loaded, and no KV is kept.

What may not be added here: how a tower computes (`models.vlm`), what of it is kept (`media_encoder`).
"""

from __future__ import annotations

import numpy as np
import torch

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.executor.interface import FinishedOutput, PendingOutput
from xllm_runtime.platform import select_platform
from xllm_runtime.processors.normalisations import load_normalisations
from xllm_runtime.worker.loading import select_dtype
from xllm_runtime.worker.media_encoder import MediaEncoder
from xllm_runtime.worker.null import NullWorker
from xllm_runtime.worker.tower_loading import load_tower


class TowerWorker(NullWorker):
    """See `Worker`: blocks are a `NullWorker`'s, and every request is one for the embeddings of its media.

    Raises:
        InvalidConfig: the device cannot be used.
        ModelLoadError: the tower cannot be loaded.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        super().__init__(config, args)
        platform = select_platform(config.model.device)
        platform.set_threads(config.execution.threads)
        dtype = select_dtype(config.model, args, platform)
        tower = load_tower(config, files, args, dtype, platform.device)
        limit = config.multimodal.max_encoder_cache_size
        self.encoder = MediaEncoder(tower, load_normalisations(files, args), dtype, platform.device, limit)
        self.model_impl = "python"
        self.device = str(platform.device)
        self.dtype = str(dtype).removeprefix("torch.")

    def begin(self, forward_input: ForwardInput, before: PendingOutput | None) -> PendingOutput:
        """See `LLMWorker.begin`; no step depends on the one before."""
        return FinishedOutput(self.execute(forward_input))

    @torch.inference_mode()
    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Return the embeddings of the media of each sequence; the tokens beside them mean nothing."""
        encoder = self.encoder
        num_encoded, num_found = encoder.num_encoded, encoder.num_found
        output = ForwardOutput(np.zeros(len(forward_input.sample_rows), np.int32))
        output.pooled = {rows.index: encoder.flat(rows.items) for rows in forward_input.pooled}
        output.num_encoded_media = encoder.num_encoded - num_encoded
        output.num_cached_media = encoder.num_found - num_found
        return output
