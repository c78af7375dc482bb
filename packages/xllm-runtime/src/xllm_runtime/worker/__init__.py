"""Owns the model, its KV cache and its executor on one device. Knows nothing of scheduling or of text."""

from xllm_runtime.worker.client import LocalWorkerClient, WorkerClient
from xllm_runtime.worker.llm import LLMWorker
from xllm_runtime.worker.null import NullWorker

__all__ = ["LLMWorker", "LocalWorkerClient", "NullWorker", "WorkerClient"]
