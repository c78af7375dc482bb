"""Assembles and runs the engine side of the dit backend: pipeline, scheduler, loop. Knows nothing of where it runs.

Importing this module imports torch; the front side never does.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from xllm_framework.config import XLLMConfig
from xllm_framework.model.image_pipeline import read_image_pipeline
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import EngineReady, FromEngine
from xllm_runtime.engine.dit import DiTEngine
from xllm_runtime.master.dit_loop import DiTLoop
from xllm_runtime.master.served_loop import failed_start, serve
from xllm_scheduler.dit_batch import ImageBatchScheduler


def run_dit_engine_side(
    config: XLLMConfig, files: ModelFiles, inbox: queue.SimpleQueue[Any], emit: Callable[[FromEngine], None]
) -> None:
    """Load the pipeline, say `EngineReady`, and serve until `Shutdown`. An error is said as `EngineFailed`, never raised."""
    try:
        pipeline = read_image_pipeline(files.path)
        engine = DiTEngine(config, files, pipeline)
        scheduler = ImageBatchScheduler(config.dit.max_requests_per_batch, max(config.scheduler.max_num_waiting, 1))
        loop = DiTLoop(scheduler, engine, inbox, emit, check_integrity=config.execution.check_integrity)
    except Exception as error:  # every failure to start becomes one message
        emit(failed_start(error))
        return
    emit(
        EngineReady(
            max_model_len=pipeline.max_sequence_length,
            num_blocks=0,
            block_size=0,
            vocab_size=0,
            model_impl="python",
            device=engine.device,
            dtype=engine.dtype,
        )
    )
    serve(loop, emit)
