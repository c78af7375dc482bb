"""One rank of a vision-language model: a language model's worker whose executor also takes media.

What may not be added here: see `worker.llm`; how a tower computes (`models.vlm`), what of it is kept (`media_encoder`).
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs, ModelFiles
from xllm_runtime.executor.interface import FinishedOutput, PendingOutput
from xllm_runtime.executor.multimodal import MultimodalExecutor
from xllm_runtime.executor.selection import select_executor
from xllm_runtime.models.vlm.interface import VisionLanguageModel
from xllm_runtime.processors.normalisations import load_normalisations
from xllm_runtime.worker.llm import LLMWorker
from xllm_runtime.worker.loading import select_dtype
from xllm_runtime.worker.media_encoder import MediaEncoder


class VLMWorker(LLMWorker):
    """See `Worker` for what each method promises.

    Raises:
        InvalidConfig: the device cannot be used, or the cache has no room.
        ModelLoadError: the model cannot be loaded, or no implementation serves it.
    """

    def __init__(self, config: XLLMConfig, files: ModelFiles, args: ModelArgs) -> None:
        super().__init__(config, files, args)
        if not hasattr(self._model, "encode"):
            raise UnsupportedModel(f"{files.name} is served by {self.model_impl}, which takes no images here.")
        model = cast("VisionLanguageModel", self._model)
        device = self._platform.device
        dtype = select_dtype(config.model, args, self._platform)
        limit = config.multimodal.max_encoder_cache_size
        self.encoder = MediaEncoder(model, load_normalisations(files, args), dtype, device, limit)
        is_overlapped = config.scheduler.enable_schedule_overlap
        max_num_seqs = config.scheduler.max_num_seqs
        text = select_executor(model.text_model, self._platform, max_num_seqs, is_overlapped=is_overlapped)
        self._executor = MultimodalExecutor(text, model, self.encoder, device)

    def begin(self, forward_input: ForwardInput, before: PendingOutput | None) -> PendingOutput:
        """See `LLMWorker.begin`; says also how many media were encoded, which no step that is still under way does."""
        encoder = self.encoder
        num_encoded, num_found = encoder.num_encoded, encoder.num_found
        step = super().begin(forward_input, before)
        if isinstance(step, FinishedOutput):
            step.output.num_encoded_media = encoder.num_encoded - num_encoded
            step.output.num_cached_media = encoder.num_found - num_found
        return step

    def _compute(self, forward_input: ForwardInput) -> ForwardOutput:
        """See `LLMWorker._compute`; of prompts whose media alone are wanted, nothing but those is computed."""
        wanted = [rows for rows in forward_input.pooled if rows.items]
        if not wanted:
            return super()._compute(forward_input)
        forward_input = dataclasses.replace(
            forward_input, pooled=[rows for rows in forward_input.pooled if not rows.items]
        )
        is_all = len(wanted) == forward_input.num_sequences
        output = ForwardOutput(np.zeros(0, np.int32)) if is_all else super()._compute(forward_input)
        output.pooled = {**(output.pooled or {}), **{rows.index: self.encoder.flat(rows.items) for rows in wanted}}
        return output
