"""Measures, before anything is served, how long the engine's steps take, or loads what an earlier start measured.

Knows nothing of what step times are used for. The steps compute on whatever the empty cache holds, which costs the same.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from xllm_framework.batch import ForwardInput
from xllm_framework.config import SchedulerConfig
from xllm_runtime.engine.llm import LLMEngine
from xllm_runtime.executor.warm_up import greedy_rows
from xllm_scheduler.latency import (
    LatencyModel,
    StepShape,
    SweepPlan,
    load_latency_model,
    measure_latency_model,
    save_latency_model,
)

CPU_PROMPT_TOKENS = 256
"""Longest prompt of a sweep on a CPU, where 2,048 would take minutes."""

logger = logging.getLogger(__name__)


def find_latency_model(config: SchedulerConfig, engine: LLMEngine) -> LatencyModel | None:
    """Return the model of `latency_model`, or with `measure_latency` and no such file, a measured one, saved there; else None.

    Raises:
        InvalidConfig: the file cannot be read.
    """
    path = Path(config.latency_model).expanduser() if config.latency_model else None
    if path is not None and (path.exists() or not config.measure_latency):
        return load_latency_model(path)
    if not config.measure_latency:
        return None
    start_s = time.monotonic()
    model, accuracy = measure_latency_model(lambda shape: _time_step(engine, shape), _plan(config, engine))
    logger.info("Measured step times in %.1f s: %s.", time.monotonic() - start_s, accuracy.to_text())
    if path is not None:
        save_latency_model(model, path)
    return model


def _plan(config: SchedulerConfig, engine: LLMEngine) -> SweepPlan:
    limits = [config.max_num_batched_tokens, engine.max_model_len - 1, (engine.num_blocks - 1) * engine.block_size]
    if engine.device == "cpu":
        limits.append(CPU_PROMPT_TOKENS)
    longest = min(*limits, SweepPlan().max_prompt_tokens)
    return SweepPlan(max_prompt_tokens=longest, prefix_step=max(1, longest // 8))


def _time_step(engine: LLMEngine, shape: StepShape) -> float:
    forward_input = shaped_input(shape, engine.num_blocks, engine.block_size)
    start_s = time.perf_counter()
    engine.compute(forward_input)
    return time.perf_counter() - start_s


def shaped_input(shape: StepShape, num_blocks: int, block_size: int) -> ForwardInput:
    """Return a step of `shape`, every sequence sampled greedily; sequences share blocks where the pool is too small for all."""
    parts = [*shape.decodes, *shape.chunks]
    lengths = np.array([tokens for tokens, _ in parts], np.int32)
    starts = np.array([before for _, before in parts], np.int32)
    query_start = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    sequence_of = np.repeat(np.arange(len(parts)), lengths)
    positions = np.arange(int(query_start[-1]), dtype=np.int32) + (starts - query_start[:-1])[sequence_of]
    width = -(-int((starts + lengths).max()) // block_size)
    places = np.arange(len(parts) * width).reshape(len(parts), width)
    block_tables = (1 + places % (num_blocks - 1)).astype(np.int32)
    blocks = block_tables[sequence_of, positions // block_size].astype(np.int64)
    return ForwardInput(
        token_ids=np.zeros(len(positions), np.int32),
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        query_start=query_start,
        seq_lens=starts + lengths,
        block_tables=block_tables,
        sample_rows=query_start[1:].astype(np.int64) - 1,
        sampling=greedy_rows(len(parts)),
        max_query_len=int(lengths.max()),
    )
