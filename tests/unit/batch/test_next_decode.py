"""Decode steps made from the step before are what a fresh builder makes, whoever comes, goes, is preempted or repeated."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from xllm_framework.batch import Batch, ForwardInput, ForwardInputBuilder, ScheduledSequence
from xllm_framework.request import Request, SamplingParams

BLOCK_SIZE = 4


def new_request(number: int, params: SamplingParams | None = None) -> Request:
    prompt = list(range(1, 2 + number % 7))
    return Request(f"r{number}", prompt, params or SamplingParams(n=1 + number % 2), arrival_time_s=0.0, seed=number)


def whole_batch(requests: list[Request]) -> Batch:
    """Return the step in which every sequence computes all that it can."""
    batch = Batch()
    pairs = [(request, sequence) for request in requests for sequence in request.sequences]
    for request, sequence in pairs:
        start = sequence.num_computed_tokens
        missing = -(-sequence.num_tokens // BLOCK_SIZE) - len(sequence.block_table)
        sequence.block_table.extend(sequence.index + 10 * sequence.num_tokens + block for block in range(missing))
        batch.add(ScheduledSequence(request, sequence, start, sequence.num_tokens - start))
    return batch


def finish_step(batch: Batch, token_id: int) -> None:
    for item in batch:
        item.sequence.num_computed_tokens = item.sequence.num_tokens
        item.sequence.append(token_id)


def fresh(batch: Batch) -> ForwardInput:
    return ForwardInputBuilder(BLOCK_SIZE, (2,)).build(batch)


def assert_equal(left: ForwardInput, right: ForwardInput) -> None:
    for part, other in ((left, right), (left.sampling, right.sampling)):
        for field in dataclasses.fields(part):
            value, expected = getattr(part, field.name), getattr(other, field.name)
            if isinstance(value, np.ndarray):
                assert value.dtype == expected.dtype, field.name
                assert np.array_equal(value, expected), field.name
            elif field.name not in ("sampling", "penalised", "logit_bias", "banned"):
                assert value == expected, field.name
    assert len(left.sampling.banned) == len(right.sampling.banned)


@pytest.mark.parametrize("seed", range(3))
def test_steps_in_a_row_equal_fresh_ones(seed: int) -> None:
    draw = random.Random(seed)
    builder = ForwardInputBuilder(BLOCK_SIZE, (2,))
    requests = [new_request(number) for number in range(4)]
    for step in range(200):
        batch = whole_batch(requests)
        assert_equal(builder.build(batch), fresh(batch))
        if draw.random() < 0.05:  # the step failed and is computed again
            assert_equal(builder.build(batch), fresh(batch))
        finish_step(batch, step)
        match draw.randrange(20):
            case 0:
                requests.append(new_request(1000 + step))
            case 1 if len(requests) > 1:
                requests.pop(draw.randrange(len(requests)))
            case 2:
                draw.shuffle(requests)
            case 3:
                preempted = draw.choice(requests).sequences[0]
                preempted.block_table, preempted.num_computed_tokens = [], 0
            case 4:
                requests[0].sequences[0].block_table.append(7)  # a block ahead of its first token


def test_arrays_that_stay_the_same_are_not_made_anew() -> None:
    builder = ForwardInputBuilder(BLOCK_SIZE)
    requests = [new_request(6)]
    built = []
    for step in range(4):
        batch = whole_batch(requests)
        built.append(builder.build(batch))
        finish_step(batch, step)
    assert built[3].sampling.temperature is built[1].sampling.temperature
    assert [step.positions.tolist() for step in built[1:]] == [[7], [8], [9]]
    assert [len(step.block_tables[0]) for step in built[1:]] == [2, 3, 3]


def test_options_that_depend_on_the_output_are_read_in_every_step() -> None:
    builder = ForwardInputBuilder(BLOCK_SIZE, (2,))
    requests = [new_request(0, SamplingParams(min_tokens=3))]
    num_banned = []
    for step in range(6):
        batch = whole_batch(requests)
        num_banned.append(len(builder.build(batch).sampling.banned))
        finish_step(batch, step)
    assert num_banned == [1, 1, 1, 0, 0, 0]
