"""Assembles and runs the engine side: engine, block manager, scheduler, loop. Knows nothing of where it runs.

Importing this module imports torch; the front side never does.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from xllm_framework.config import XLLMConfig
from xllm_framework.kv_cache import BlockManager, HashPrefixCache, StateSlots, new_secret
from xllm_framework.model import load_model_args
from xllm_framework.model.source import ModelFiles
from xllm_framework.request import StoppingChecker
from xllm_framework.request.messages import EngineReady, FromEngine
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.auto_config import pays_to_overlap, scheduler_config
from xllm_runtime.constraint import GrammarCompiler
from xllm_runtime.engine.llm import LLMEngine
from xllm_runtime.master.archive_fetcher import ArchiveFetcher
from xllm_runtime.master.constrained_requests import LoopMessage
from xllm_runtime.master.latency_sweep import find_latency_model
from xllm_runtime.master.loop import EngineLoop
from xllm_runtime.master.profiling import StepProfiler
from xllm_runtime.master.served_loop import failed_start, serve
from xllm_runtime.platform import selects_cpu
from xllm_runtime.platform.cpu_cores import usable_cores
from xllm_runtime.platform.cuda_context import begin_context
from xllm_scheduler import Scheduler

if TYPE_CHECKING:
    from xllm_runtime.constraint.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def run_engine_side(
    config: XLLMConfig,
    files: ModelFiles,
    inbox: queue.SimpleQueue[LoopMessage],
    emit: Callable[[FromEngine], None],
    engine_class: type[LLMEngine] = LLMEngine,
) -> None:
    """Load the model, say `EngineReady`, and serve until `Shutdown`. An error is said as `EngineFailed`, never raised."""
    engine: LLMEngine | None = None
    begin_context(config.model.device)
    try:
        config = _without_vain_overlap(config)
        args = load_model_args(files)
        engine = engine_class(config, files, args)
        ranks = _block_managers(config, engine)
        scheduler = Scheduler(
            scheduler_config(config.scheduler, engine.device),
            ranks,
            StoppingChecker(args.eos_token_ids, engine.max_model_len),
            latency=find_latency_model(config.scheduler, engine),
        )
        loop = EngineLoop(
            scheduler,
            engine,
            inbox,
            emit,
            compiler=GrammarCompiler(partial(_vocabulary, files, engine.vocab_size, args.eos_token_ids)),
            profiler=StepProfiler(config.execution.profile_dir),
            is_overlapped=config.scheduler.enable_schedule_overlap,
            fetcher=None if engine.archive is None else ArchiveFetcher(engine.archive, ranks, scheduler.prefill_s),
            check_integrity=config.execution.check_integrity,
        )
    except Exception as error:  # every failure to start becomes one message
        emit(failed_start(error))
        if engine is not None:
            engine.close()
        return
    emit(
        EngineReady(
            max_model_len=engine.max_model_len,
            num_blocks=sum(blocks.num_usable_blocks for blocks in ranks),
            block_size=engine.block_size,
            vocab_size=engine.vocab_size,
            model_impl=engine.model_impl,
            device=engine.device,
            dtype=engine.dtype,
        )
    )
    try:
        serve(loop, emit)
    finally:
        engine.close()


def _without_vain_overlap(config: XLLMConfig) -> XLLMConfig:
    """Return the options without `enable_schedule_overlap` where planning would take a core from those that compute."""
    if not config.scheduler.enable_schedule_overlap or not selects_cpu(config.model.device):
        return config
    if pays_to_overlap(config, usable_cores()):
        return config
    logger.info(
        "enable_schedule_overlap is left off: all cores compute. Give --threads fewer than there are to use it."
    )
    return replace(config, scheduler=replace(config.scheduler, enable_schedule_overlap=False))


def _block_managers(config: XLLMConfig, engine: LLMEngine) -> list[BlockManager]:
    """Return one block manager a data-parallel rank. Their prefix caches make equal keys, so that a prompt is hashed once."""
    secret = new_secret() if engine.archive is None else engine.archive.prefix_secret
    managers = []
    for _ in range(engine.num_ranks):
        blocks = BlockManager(
            engine.num_blocks,
            engine.block_size,
            enable_prefix_cache=config.kv_cache.enable_prefix_cache,
            prefix_cache=HashPrefixCache(engine.block_size, secret),
            num_host_blocks=engine.num_host_blocks,
            archive=engine.archive,
            sliding_windows=engine.cache_layout.sliding_windows,
            states=StateSlots(engine.num_state_slots, config.kv_cache.state_stride) if engine.num_state_slots else None,
        )
        blocks.can_copy_blocks = engine.can_copy_blocks
        managers.append(blocks)
    return managers


def _vocabulary(files: ModelFiles, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """Return what constraints need to know of the model's tokens; takes as long as loading a tokenizer does."""
    from xllm_runtime.constraint.vocabulary import model_vocabulary

    return model_vocabulary(load_tokenizer(files), vocab_size, eos_token_ids)
