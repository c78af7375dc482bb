"""Turns the batches of a step into its outputs, over all workers. Knows nothing of requests' lives or of text."""

from xllm_runtime.engine.llm import LLMEngine

__all__ = ["LLMEngine"]
