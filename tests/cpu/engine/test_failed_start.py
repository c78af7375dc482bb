"""An engine that fails between loading its workers and its first step lets the workers go."""

from __future__ import annotations

import pytest

from support.loaded_models import model_files
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import OutOfMemory, XLLMError
from xllm_framework.model import load_model_args
from xllm_runtime.engine import LLMEngine
from xllm_runtime.worker import LocalWorkerClient


def test_workers_are_closed_when_the_cache_cannot_be_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def fail(client: LocalWorkerClient, num_blocks: int, block_size: int) -> None:
        raise OutOfMemory("There is no room.")

    monkeypatch.setattr(LocalWorkerClient, "allocate_kv_cache", fail)
    monkeypatch.setattr(LocalWorkerClient, "close", lambda client: closed.append(client))
    folder = tiny_checkpoint("llama")
    files = model_files(folder)
    config = XLLMConfig.from_flat({"model": str(folder), "device": "cpu", "threads": 1, "num_blocks": 20})
    with pytest.raises(XLLMError, match="no room"):
        LLMEngine(config, files, load_model_args(files))
    assert len(closed) == 1
