"""The flat arrays say exactly what the batch said: every token with its position and its slot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xllm_framework.batch import Batch, ForwardInputBuilder, ScheduledSequence
from xllm_framework.batch.sequence_rows import sequence_seed
from xllm_framework.request import Request, SamplingParams


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, int]:
    block_size = draw(st.integers(1, 5))
    batch = Batch()
    next_block = 1
    for number in range(draw(st.integers(1, 6))):
        num_tokens = draw(st.integers(1, 20))
        prompt = draw(st.lists(st.integers(0, 999), min_size=num_tokens, max_size=num_tokens))
        request = Request(f"r{number}", prompt, SamplingParams(), arrival_time_s=0.0)
        start = draw(st.integers(0, num_tokens - 1))
        length = draw(st.integers(1, num_tokens - start))
        num_blocks = -(-num_tokens // block_size)
        request.sequences[0].block_table = list(range(next_block, next_block + num_blocks))
        next_block += num_blocks
        batch.add(ScheduledSequence(request, request.sequences[0], start, length))
    return batch, block_size


@given(batches())
def test_every_token_has_its_position_and_slot(case: tuple[Batch, int]) -> None:
    batch, block_size = case
    result = ForwardInputBuilder(block_size).build(batch)
    assert result.num_tokens == batch.num_tokens
    row = 0
    sampled = []
    for index, item in enumerate(batch):
        assert result.query_start[index] == row
        assert result.seq_lens[index] == item.start + item.num_scheduled_tokens
        for position in range(item.start, item.start + item.num_scheduled_tokens):
            block = item.sequence.block_table[position // block_size]
            assert result.token_ids[row] == item.sequence.token_ids[position]
            assert result.positions[row] == position
            assert result.slot_mapping[row] == block * block_size + position % block_size
            row += 1
        if item.start + item.num_scheduled_tokens == item.sequence.num_tokens:
            sampled.append(row - 1)
        table = item.sequence.block_table
        assert list(result.block_tables[index, : len(table)]) == table
        assert not result.block_tables[index, len(table) :].any()
    assert list(result.sample_rows) == sampled
    assert len(result.sampling.temperature) == len(sampled)
    assert result.max_query_len == max(item.num_scheduled_tokens for item in batch)


def scheduled(params: SamplingParams, prompt: tuple[int, ...] = (4, 5, 6), *output: int) -> ScheduledSequence:
    request = Request("r", prompt, params, arrival_time_s=0.0, seed=11)
    sequence = request.sequences[0]
    for token_id in output:
        sequence.append(token_id)
    sequence.block_table = [1, 2]
    return ScheduledSequence(request, sequence, 0, sequence.num_tokens)


def build(item: ScheduledSequence):
    batch = Batch()
    batch.add(item)
    return ForwardInputBuilder(4, eos_token_ids=(9,)).build(batch)


def test_greedy_rows_have_temperature_zero_and_tiny_ones_are_raised() -> None:
    assert build(scheduled(SamplingParams(top_k=1))).sampling.is_all_greedy
    assert build(scheduled(SamplingParams(temperature=1e-12))).sampling.temperature[0] == np.float32(0.01)


def test_penalties_bias_and_banned_tokens_are_listed_only_where_asked() -> None:
    plain = build(scheduled(SamplingParams())).sampling
    assert (plain.penalised, plain.logit_bias, plain.banned) == ([], [], [])
    params = SamplingParams(presence_penalty=1.0, logit_bias={3: 2.0}, min_tokens=5, stop_token_ids=(7,))
    rows = build(scheduled(params, (4, 5, 6), 8)).sampling
    (row, prompt, output) = rows.penalised[0]
    assert (row, list(prompt), list(output)) == (0, [4, 5, 6], [8])
    assert list(rows.logit_bias[0][1]) == [3]
    assert sorted(rows.banned[0][1]) == [7, 9]


def test_seeds_of_sequences_differ_and_the_request_seed_wins() -> None:
    request = Request("r", [1], SamplingParams(n=3, seed=0), arrival_time_s=0.0, seed=11)
    assert request.seed == 0
    assert len({sequence_seed(request, sequence) for sequence in request.sequences}) == 3
    negative = Request("r", [1], SamplingParams(seed=-1), arrival_time_s=0.0)
    assert 0 <= sequence_seed(negative, negative.sequences[0]) < 2**64


def test_prompt_logprobs_cover_each_prompt_token_once_over_chunks() -> None:
    request = Request("r", [4, 5, 6, 7, 8], SamplingParams(prompt_logprobs=2), arrival_time_s=0.0)
    sequence = request.sequences[0]
    sequence.block_table = [1, 2]
    targets: list[int] = []
    for start, length in ((0, 2), (2, 1), (3, 2)):
        batch = Batch()
        batch.add(ScheduledSequence(request, sequence, start, length))
        for _, k, wanted in ForwardInputBuilder(4).build(batch).prompt_logprobs:
            assert k == 2
            targets.extend(int(token) for token in wanted)
    assert targets == [5, 6, 7, 8]
