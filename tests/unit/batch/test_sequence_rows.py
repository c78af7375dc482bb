"""A builder that remembers rows builds what a fresh one builds, whoever comes, grows, is preempted or goes."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from xllm_framework.batch import Batch, ForwardInput, ForwardInputBuilder, ScheduledSequence
from xllm_framework.request import Request, SamplingParams

BLOCK_SIZE = 2


def assert_equal(left: ForwardInput, right: ForwardInput) -> None:
    for part, other in ((left, right), (left.sampling, right.sampling)):
        for field in dataclasses.fields(part):
            value, expected = getattr(part, field.name), getattr(other, field.name)
            if isinstance(value, np.ndarray):
                assert value.dtype == expected.dtype, field.name
                assert np.array_equal(value, expected), field.name


def new_request(draw: random.Random, number: int) -> Request:
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.5, 1.5]),
        top_p=draw.choice([1.0, 0.9]),
        top_k=draw.choice([-1, 0, 1, 40, 10**12]),
        min_p=draw.choice([0.0, 0.1]),
        logprobs=draw.choice([None, 0, 5]),
        presence_penalty=draw.choice([0.0, 1.0]),
        min_tokens=draw.choice([0, 3]),
        seed=draw.choice([None, -5, 2**62]),
        n=draw.choice([1, 2]),
    )
    return Request(f"r{number}", [1] * draw.randrange(1, 100), params, arrival_time_s=0.0, seed=number)


def give_blocks(draw: random.Random, item: ScheduledSequence) -> None:
    needed = -(-(item.start + item.num_scheduled_tokens) // BLOCK_SIZE)
    table = item.sequence.block_table
    table.extend(draw.randrange(1, 10_000) for _ in range(needed - len(table)))


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_reused_leave_no_trace(seed: int) -> None:
    draw = random.Random(seed)
    builder = ForwardInputBuilder(BLOCK_SIZE)
    requests = [new_request(draw, number) for number in range(40)]
    for step in range(60):
        batch = Batch()
        for request in draw.sample(requests, draw.randrange(0, 40)):
            for sequence in request.sequences:
                start = sequence.num_computed_tokens
                item = ScheduledSequence(request, sequence, start, draw.randrange(1, sequence.num_tokens - start + 1))
                give_blocks(draw, item)
                batch.add(item)
        built = builder.build(batch)
        assert_equal(built, ForwardInputBuilder(BLOCK_SIZE).build(batch))
        for row, item in enumerate(batch):
            table = item.sequence.block_table
            assert built.block_tables[row].tolist() == table + [0] * (built.block_tables.shape[1] - len(table))
        for item in batch:
            item.sequence.num_computed_tokens = item.start + item.num_scheduled_tokens
            if item.sequence.num_uncomputed_tokens == 0:
                item.sequence.append(step)
            if draw.random() < 0.1:
                item.sequence.block_table = []
                item.sequence.num_computed_tokens = 0
        requests = [r if draw.random() < 0.9 else new_request(draw, 1000 * step + i) for i, r in enumerate(requests)]


def test_what_was_built_does_not_change_later() -> None:
    builder = ForwardInputBuilder(BLOCK_SIZE)
    request = Request("r", [1, 2, 3], SamplingParams(), arrival_time_s=0.0)
    item = ScheduledSequence(request, request.sequences[0], 0, 3)
    item.sequence.block_table = [4, 5]
    batch = Batch()
    batch.add(item)
    first = builder.build(batch)
    item.sequence.block_table.append(6)
    builder.build(batch)
    assert first.block_tables.tolist() == [[4, 5]]
