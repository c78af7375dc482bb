"""Finds which sequences of a step made it fail, so that the others go on. Knows nothing of why, or of what follows.

A step may be executed twice: KV goes to the same slots again, and random numbers depend on seed and position alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.errors import EngineDead, XLLMError


class Engine(Protocol):
    """What the loop needs of an engine."""

    def execute(self, group: BatchGroup) -> list[ForwardOutput]:
        """Compute one step; one output a batch of `group`. Raises anything when the step fails as a whole."""

    def close(self) -> None:
        """Release devices and workers."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """A failed step, computed again one sequence at a time."""

    group: BatchGroup
    """What could be computed, in the old order."""
    outputs: list[ForwardOutput]
    failures: dict[str, str]
    """request id -> why, of the requests with a sequence that failed again."""


def execute_one_by_one(engine: Engine, group: BatchGroup) -> Isolated:
    """Execute every scheduled sequence of `group` alone; one pass of the model each.

    Raises:
        EngineDead: the engine itself is gone, which no sequence is to blame for.
    """
    failures: dict[str, str] = {}
    batches, outputs = [], []
    for rank, batch in enumerate(group.batches):
        good, parts = Batch(), []
        for item in batch:
            try:
                parts.append((item, engine.execute(_alone(item, rank, len(group.batches)))[rank]))
            except EngineDead:
                raise
            except XLLMError as error:
                failures.setdefault(item.sequence.request_id, error.message)
            except Exception as error:  # whatever a model raises is this sequence's failure
                failures.setdefault(item.sequence.request_id, f"{type(error).__name__}: {error}")
            else:
                good.add(item)
        batches.append(good)
        outputs.append(_merged(parts))
    return Isolated(BatchGroup(tuple(batches)), outputs, failures)


def _alone(item: ScheduledSequence, rank: int, num_ranks: int) -> BatchGroup:
    batches = tuple(Batch() for _ in range(num_ranks))
    batches[rank].add(item)
    return BatchGroup(batches)


def _merged(parts: list[tuple[ScheduledSequence, ForwardOutput]]) -> ForwardOutput:
    """Join the outputs of single sequences into what one pass would have given."""
    outputs = [output for _, output in parts]
    width = max((output.top_ids.shape[1] for output in outputs if output.top_ids is not None), default=0)
    merged = ForwardOutput(np.concatenate([np.empty(0, np.int32), *(output.token_ids for output in outputs)]))
    num_rows = len(merged.token_ids)
    if any(output.logprobs is not None for output in outputs):
        merged.logprobs = np.zeros(num_rows, np.float32)
    if width:
        merged.top_ids = np.zeros((num_rows, width), np.int32)
        merged.top_logprobs = np.zeros((num_rows, width), np.float32)
    errors: dict[int, str] = {}
    prompt_logprobs, pooled = {}, {}
    row = 0
    for index, output in enumerate(outputs):
        rows = slice(row, row + len(output.token_ids))
        if merged.logprobs is not None and output.logprobs is not None:
            merged.logprobs[rows] = output.logprobs
        if merged.top_ids is not None and merged.top_logprobs is not None and output.top_ids is not None:
            merged.top_ids[rows, : output.top_ids.shape[1]] = output.top_ids
            merged.top_logprobs[rows, : output.top_ids.shape[1]] = output.top_logprobs
        errors |= {row + at: message for at, message in (output.errors or {}).items()}
        if output.prompt_logprobs:
            prompt_logprobs[index] = output.prompt_logprobs[0]
        if output.pooled:
            pooled[index] = output.pooled[0]
        row = rows.stop
    merged.errors = errors or None
    merged.prompt_logprobs = prompt_logprobs or None
    merged.pooled = pooled or None
    return merged
