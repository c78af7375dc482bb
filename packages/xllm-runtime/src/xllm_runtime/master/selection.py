"""Chooses the master and the engine side by backend, and starts both. Imports only what it chooses."""

from __future__ import annotations

import importlib
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import UnsupportedModel, XLLMError
from xllm_framework.model.source import ModelFiles, resolve_model
from xllm_runtime.backend import choose_backend
from xllm_runtime.master.spawned_engine import SpawnedEngine

if TYPE_CHECKING:
    from xllm_framework.request.messages import FromEngine
    from xllm_runtime.master.constrained_requests import LoopMessage
    from xllm_runtime.master.dispatcher import DispatcherEvent
    from xllm_runtime.master.engine_client import EngineClient
    from xllm_runtime.master.llm import LLMMaster

MASTERS = {
    "llm": "xllm_runtime.master.llm:LLMMaster",
    "vlm": "xllm_runtime.master.vlm:VLMMaster",
    "rec": "xllm_runtime.master.rec:RecMaster",
    "dit": "xllm_runtime.master.dit:DiTMaster",
}
"""Backend -> "module:Class"; a master is made by its class method `attach(config, files, client, events)`."""
ENGINE_SIDES = {
    "llm": "xllm_runtime.master.engine_side:run_engine_side",
    "vlm": "xllm_runtime.master.vlm_engine_side:run_vlm_engine_side",
    "rec": "xllm_runtime.master.rec_engine_side:run_rec_engine_side",
    "dit": "xllm_runtime.master.dit_engine_side:run_dit_engine_side",
}
"""Backend -> "module:function" that serves the other end, with the signature of `run_engine_side`."""


def create_master(config: XLLMConfig, *, engine_process: bool | SpawnedEngine) -> LLMMaster:
    """Load the model and return its master once it takes requests.

    Args:
        engine_process: run the engine side in a process of its own, or in that one, which loads `config`'s model already;
            else in a thread of this one.

    Raises:
        XLLMError: the model cannot be served; the class and the sentence are the engine side's own.
    """
    spawned = SpawnedEngine(config) if engine_process is True else engine_process
    files = spawned.files if spawned else resolve_model(config.model.model, config.load)
    events: queue.SimpleQueue[DispatcherEvent] = queue.SimpleQueue()
    client = _connect(config, files, spawned, events)
    try:
        master_class = _find(MASTERS, choose_backend(config.model, files))
        master: LLMMaster = master_class.attach(config, files, client, events)
    except BaseException:
        client.close(timeout_s=0.0)
        raise
    return master


def run_engine_side(
    config: XLLMConfig, files: ModelFiles, inbox: queue.SimpleQueue[LoopMessage], emit: Callable[[FromEngine], None]
) -> None:
    """Serve as the engine side of the model's backend until `Shutdown`; a failure to begin is said as `EngineFailed`."""
    try:
        run = _find(ENGINE_SIDES, choose_backend(config.model, files))
    except XLLMError as error:
        from xllm_framework.request.messages import EngineFailed

        emit(EngineFailed(error.message, error.kind))
        return
    run(config, files, inbox, emit)


def import_likely_engine_side(backend: str) -> None:
    """Import, before the model is known, what serving `backend` (as configured) most likely needs."""
    _find(ENGINE_SIDES, "llm" if backend == "auto" else backend)


def _connect(
    config: XLLMConfig,
    files: ModelFiles,
    spawned: SpawnedEngine | Literal[False],
    events: queue.SimpleQueue[DispatcherEvent],
) -> EngineClient:
    if spawned:
        from xllm_runtime.master.process import ProcessClient

        return ProcessClient(spawned, events.put)
    from xllm_runtime.master.in_process import InProcessClient

    return InProcessClient(config, files, events.put)


def _find(table: dict[str, str], backend: str) -> Any:
    path = table.get(backend)
    if path is None:
        raise UnsupportedModel(f"The {backend} backend is not part of this version.")
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
