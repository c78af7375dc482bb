"""Owns the model, its KV cache and its executor on one device. Knows nothing of scheduling or of text."""

from xllm_runtime.worker.client import LocalWorkerClient, Worker, WorkerClient
from xllm_runtime.worker.llm import LLMWorker
from xllm_runtime.worker.null import NullWorker
from xllm_runtime.worker.threaded import ThreadedWorkerClient

__all__ = ["LLMWorker", "LocalWorkerClient", "NullWorker", "ThreadedWorkerClient", "Worker", "WorkerClient"]
