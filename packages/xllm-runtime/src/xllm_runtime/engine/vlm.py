"""The engine of a vision-language model: a language model's, whose steps also carry images and videos.

What may not be added here: see `engine.llm`. Which media are encoded already is the workers' to know.
"""

from __future__ import annotations

from xllm_framework.batch import Batch, ForwardInput
from xllm_framework.batch.media_rows import MediaRows, add_media
from xllm_runtime.engine.llm import LLMEngine


class VLMEngine(LLMEngine):
    """See `LLMEngine`."""

    def _build(self, batch: Batch) -> ForwardInput:
        forward_input = super()._build(batch)
        if any(item.request.media is not None for item in batch.scheduled):
            add_media(forward_input, batch)
        return forward_input


class WholeMediaEngine(VLMEngine):
    """A `VLMEngine` for workers that want all media of a sequence in each of its steps."""

    def _build(self, batch: Batch) -> ForwardInput:
        forward_input = LLMEngine._build(self, batch)
        prompts = [item.request.media for item in batch.scheduled]
        if any(media is not None for media in prompts):
            forward_input.media = MediaRows(prompts=prompts)
        return forward_input
