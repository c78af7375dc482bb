"""The engine of a vision-language model: a language model's, whose steps also carry images and videos.

What may not be added here: see `engine.llm`. Which media are encoded already is the workers' to know.
"""

from __future__ import annotations

from xllm_framework.batch import Batch, ForwardInput
from xllm_framework.batch.media_rows import add_media
from xllm_runtime.engine.llm import LLMEngine


class VLMEngine(LLMEngine):
    """See `LLMEngine`."""

    def _build(self, batch: Batch) -> ForwardInput:
        forward_input = super()._build(batch)
        if any(item.request.media is not None for item in batch.scheduled):
            add_media(forward_input, batch)
        return forward_input
