"""How the fastest of some ways is found, and that products without a GPU are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from xllm_kernels.cuda.cublaslt import _library, why_no_product
from xllm_kernels.cuda.products import LEAST_GAIN, SAMPLES, MeasuredProducts, Trial
from xllm_runtime.layers import products


@given(st.lists(st.floats(1, 100), min_size=1, max_size=8), st.randoms(use_true_random=False), st.integers(0, 30))
def test_the_fastest_is_found_however_late_timings_come(times, random, most_late):
    trial, under_way = Trial(len(times)), []
    for _ in range(SAMPLES * len(times) + most_late + len(times)):
        if trial.chosen is not None:
            break
        under_way.append(trial.next())
        while len(under_way) > random.randint(0, most_late):
            way = under_way.pop(0)
            trial.record(way, times[way])
    for way in under_way:
        trial.record(way, times[way])
    assert trial.chosen is not None
    assert times[trial.chosen] <= min(times) / (1 - LEAST_GAIN)
    assert trial.chosen == 0 or times[trial.chosen] < times[0]


def test_each_way_has_its_turns():
    trial = Trial(3)
    assert [trial.next() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_single_slow_timing_decides_nothing():
    trial = Trial(2)
    for turn in range(SAMPLES):
        trial.record(0, 10.0)
        assert trial.chosen is None
        trial.record(1, 500.0 if turn == 1 else 8.0)
    assert trial.chosen == 1


def test_what_gains_little_is_not_worth_a_change():
    trial = Trial(2)
    for _ in range(SAMPLES):
        trial.record(0, 10.0)
        trial.record(1, 10.0 * (1 - LEAST_GAIN / 2))
    assert trial.chosen == 0


@pytest.mark.parametrize("bias", [None, torch.ones(6)])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_products_without_a_gpu_are_those_of_torch(shape, bias, monkeypatch):
    monkeypatch.setattr(products, "MEASURED_OPERATIONS", 0)
    monkeypatch.setattr(products, "measured_product", lambda: pytest.fail("the library of a GPU was asked"))
    x, weight = torch.randn(shape), torch.randn(6, 4)
    assert torch.equal(products.plain_product(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (torch.zeros(4, 8), torch.zeros(8, 8), "16"),
        (torch.zeros(4, 8).bfloat16(), torch.zeros(8, 8).half(), "16"),
        (torch.zeros(1, 4, 8).half(), torch.zeros(8, 8).half(), "dense"),
        (torch.zeros(4, 16).half()[:, :8], torch.zeros(8, 8).half(), "dense"),
        (torch.zeros(4, 8).half(), torch.zeros(4, 8).half(), "multiples of 16 bytes"),
        (torch.zeros(33).half()[1:].view(4, 8), torch.zeros(8, 8).half(), "aligned"),
    ],
)
def test_what_the_library_does_not_take_is_told_and_left_to_torch(x, weight, reason):
    assert reason in (why_no_product(x, weight) or "")
    if x.dtype == weight.dtype:
        assert torch.equal(MeasuredProducts()(x, weight), F.linear(x, weight))


def test_a_missing_library_is_named_and_done_without(monkeypatch, caplog):
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    _library.cache_clear()
    x, weight, measured = torch.randn(4, 8).half(), torch.randn(16, 8).half(), MeasuredProducts()
    for _ in range(3):
        assert torch.equal(measured(x, weight), F.linear(x, weight))
    assert [record.getMessage().count("libcublasLt.so.99") for record in caplog.records] == [1]
