"""What renderings of answers without generated tokens share: they are whole, never streamed. Knows no JSON shapes."""

from __future__ import annotations

from collections.abc import Sequence

from xllm_framework.errors import XLLMError
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.protocol.pooling import PoolingUsage
from xllm_server.sse import error_event


class WholeRendering:
    """The parts of `Rendering` that a stream would need."""

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return nothing: these requests are not streamed."""
        return b""

    def end(self, generation: Generation) -> bytes:
        """Return nothing, as `encode` does."""
        return b""

    def failure(self, error: XLLMError) -> bytes:
        """Return the event of an error."""
        return error_event(error)


def pooling_usage(generation: Generation) -> PoolingUsage:
    """Return the token counts of an answer."""
    num_tokens = generation.usage.prompt_tokens
    return PoolingUsage(num_tokens, num_tokens)
