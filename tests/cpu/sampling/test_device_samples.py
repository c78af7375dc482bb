"""Tokens that are chosen without waiting for the device, on tensors of the CPU: the same as the sampler's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sampling_batches import batches
from support.sampling_rows import Row, sampling_rows
from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_runtime.sampling.adjust import adjust
from xllm_runtime.sampling.device_samples import Choices, sample_on_device
from xllm_runtime.sampling.draw import DrawRows, draw
from xllm_runtime.sampling.penalties import penalise
from xllm_runtime.sampling.ranking import best_tokens, best_tokens_by_key
from xllm_runtime.sampling.sampler import sample


def draw_rows(logits, token_ids, best, rows):
    chosen = np.flatnonzero((rows.temperature > 0.0) & np.isfinite(best.numpy()))
    if len(chosen):
        index = torch.from_numpy(chosen)
        found = draw(logits[index].float(), best[index], DrawRows.take(rows, chosen, logits))
        token_ids.index_copy_(0, index, found.to(torch.int32))


def sampled(logits: torch.Tensor, rows, newest: list[int]):
    best, tokens = logits.max(-1)
    choices = Choices(logits, tokens.to(torch.int32), best.float())
    return sample_on_device(choices, torch.tensor(newest, dtype=torch.int32), rows, draw_rows).output()


def newest_of(rows: list[Row]) -> list[int]:
    return [row.output[-1] if row.output else row.prompt[-1] if row.prompt else 0 for row in rows]


def hide_newest(options):
    """Put placeholders where the device alone knows the token."""
    for _, _, output in options.penalised:
        output[-1:] = -1
    return options


@given(batches())
@settings(deadline=None, max_examples=60)
def test_everything_is_as_the_sampler_has_it(batch):
    logits, rows = batch
    expected = sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    found = sampled(torch.from_numpy(logits), hide_newest(sampling_rows(rows)), newest_of(rows))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.errors == expected.errors
    for name in ("logprobs", "top_ids", "top_logprobs"):
        a, b = getattr(found, name), getattr(expected, name)
        assert (a is None) == (b is None)
        assert a is None or a.tolist() == b.tolist()


def test_broken_rows_and_barred_ones_fail_alone():
    logits = torch.zeros(3, 40)
    logits[:, 7] = 1
    logits[0, 3] = float("nan")
    rows = sampling_rows([Row(logprobs=2), Row(banned=tuple(range(40)), logprobs=2), Row(logprobs=2)])
    found = sampled(logits, rows, [0, 0, 0])
    assert found.token_ids.tolist() == [-1, -1, 7]
    assert set(found.errors) == {0, 1}
    assert found.top_ids.tolist()[2] == [7, 0]
    assert found.top_ids.tolist()[0] == [-1, -1]


def test_rows_under_a_grammar_take_what_is_allowed():
    logits = torch.arange(64.0).repeat(3, 1)
    rows = sampling_rows([Row(), Row(presence_penalty=61.0, output=(63,)), Row()])
    rows.allowed = AllowedTokens(np.array([1, 2]), np.array([[0b1010, 1 << 31], [0b100, 0]], np.uint32).view(np.int32))
    assert sampled(logits, hide_newest(rows), [0, 63, 0]).token_ids.tolist() == [63, 3, 2]


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=2, max_size=80), st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_counting_on_the_device_changes_the_same_bits(outputs, seed):
    generator = np.random.default_rng(seed)
    rows = [
        Row(
            presence_penalty=float(generator.normal()),
            frequency_penalty=float(generator.normal()),
            repetition_penalty=float(generator.choice([1.0, 1.3, 0.7])),
            prompt=tuple(generator.integers(0, 31, 4).tolist()),
            output=tuple(output),
        )
        for output in outputs
    ]
    logits = torch.from_numpy(generator.normal(0, 3, (len(rows), 31)).astype(np.float32))
    expected = logits.clone()
    adjust(expected, sampling_rows(rows))
    penalise(logits, hide_newest(sampling_rows(rows)), torch.tensor(newest_of(rows), dtype=torch.int32))
    assert torch.equal(logits, expected)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_keys_rank_as_comparisons_do(num_rows, size, seed):
    generator = np.random.default_rng(seed)
    values = np.array([-np.inf, -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, 2.0000002, 1e30], np.float32)
    logits = torch.from_numpy(generator.choice(values, (num_rows, size)))
    width = int(generator.integers(1, size + 1))
    for found, expected in zip(best_tokens_by_key(logits, width), best_tokens(logits, width), strict=True):
        assert torch.equal(found, expected)
