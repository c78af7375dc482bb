"""Assembles and runs the engine side of the rec backend: engine, catalogue, scheduler, pipelines, loop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import BlockManager
from xllm_framework.model.source import ModelFiles
from xllm_framework.rec import Catalogue, CatalogueStore, open_catalogue
from xllm_framework.rec.catalogue import bundled_items
from xllm_framework.rec.onerec_args import load_rec_args
from xllm_framework.request.messages import EngineReady, FromEngine
from xllm_framework.request.rec_messages import MAX_BEAM_WIDTH
from xllm_runtime.engine.rec import RecEngine
from xllm_runtime.master.rec_conversion import PathConversion
from xllm_runtime.master.rec_loop import RecLoop
from xllm_runtime.master.rec_pipelines import Pipelines
from xllm_runtime.master.served_loop import failed_start, serve
from xllm_scheduler.fixed_steps import FixedStepsLimits, FixedStepsScheduler

MAX_BEAMS_PER_BATCH = 16 * MAX_BEAM_WIDTH


def run_rec_engine_side(
    config: XLLMConfig, files: ModelFiles, inbox: queue.SimpleQueue[Any], emit: Callable[[FromEngine], None]
) -> None:
    """Load model and catalogue, say `EngineReady`, and serve until `Shutdown`. An error is said as `EngineFailed`."""
    try:
        store = _open_store(config, files)
        engine = RecEngine(config, files, load_rec_args(files))
        loop = _assemble(config, engine, store, inbox, emit)
    except Exception as error:  # every failure to start becomes one message
        emit(failed_start(error))
        return
    emit(_ready(engine))
    serve(loop, emit)


def _assemble(
    config: XLLMConfig,
    engine: RecEngine,
    store: CatalogueStore | None,
    inbox: queue.SimpleQueue[Any],
    emit: Callable[[FromEngine], None],
) -> RecLoop:
    block_manager = BlockManager(
        engine.num_blocks, engine.block_size, enable_prefix_cache=config.kv_cache.enable_prefix_cache
    )
    limits = FixedStepsLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_num_beams=MAX_BEAMS_PER_BATCH,
        max_num_waiting=config.scheduler.max_num_waiting,
    )

    def read_catalogue(path: Path, is_extended: bool) -> Catalogue:
        rounds = config.rec.max_decode_rounds
        return open_catalogue(path, vocab_size=engine.vocab_size, tokens_per_item=rounds, is_extended=is_extended)

    if store is not None:
        store.served.catalogue.items.check_vocabulary(engine.vocab_size)
    loop = RecLoop(
        FixedStepsScheduler(limits, block_manager),
        block_manager,
        store,
        read_catalogue,
        inbox,
        emit,
        check_integrity=config.execution.check_integrity,
    )
    loop.pipelines = Pipelines(engine, inbox.put, PathConversion(config.rec))
    return loop


def _open_store(config: XLLMConfig, files: ModelFiles) -> CatalogueStore | None:
    """Return the catalogues, with the configured one served; None where searches are free.

    Raises:
        InvalidConfig: there is no catalogue.
        InvalidCatalogue: it cannot be used.
    """
    rec = config.rec
    if not rec.enable_constrained_decoding:
        return None
    place = (Path(rec.item_file), rec.enable_extended_item_info) if rec.item_file else bundled_items(files.path)
    if place is None:
        raise InvalidConfig(
            f"The rec backend needs a catalogue: give item_file (there is none in {files.path}), or turn "
            "enable_constrained_decoding off."
        )
    path, is_extended = place
    catalogue = open_catalogue(
        path, vocab_size=2**31 - 1, tokens_per_item=rec.max_decode_rounds, is_extended=is_extended
    )
    return CatalogueStore(catalogue)


def _ready(engine: RecEngine) -> EngineReady:
    return EngineReady(
        max_model_len=engine.max_model_len,
        num_blocks=engine.num_blocks - 1,
        block_size=engine.block_size,
        vocab_size=engine.vocab_size,
        model_impl=engine.model_impl,
        device=engine.device,
        dtype=engine.dtype,
    )
