"""Owns the model, its KV cache and its executor on one device. Knows nothing of scheduling or of text.

Importing it imports no torch: `start_worker` takes the worker that fits.
"""

from xllm_runtime.worker.client import WorkerClient
from xllm_runtime.worker.in_process import LocalWorkerClient
from xllm_runtime.worker.null import NullWorker
from xllm_runtime.worker.queued import QueuedWorkerClient, StartsSteps
from xllm_runtime.worker.selection import start_worker
from xllm_runtime.worker.threaded import ThreadedWorkerClient

__all__ = [
    "LocalWorkerClient",
    "NullWorker",
    "QueuedWorkerClient",
    "StartsSteps",
    "ThreadedWorkerClient",
    "WorkerClient",
    "start_worker",
]
