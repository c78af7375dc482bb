"""The native thread pool: its size, several callers at once, forked children."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.attention_cases import make_attention_case
from xllm_kernels import get_num_threads, ops, set_num_threads


@pytest.fixture(autouse=True)
def restore_threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


def test_default_is_within_the_usable_cpus() -> None:
    assert 1 <= get_num_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_sizes_out_of_range(num_threads: int) -> None:
    with pytest.raises(ValueError, match=r"num_threads must be in \[1, 1024\]"):
        set_num_threads(num_threads)


@pytest.mark.parametrize("pin", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(pin: bool) -> None:
    x = np.random.default_rng(0).standard_normal((400, 1000), dtype=np.float32)
    set_num_threads(1)
    expected = ops.silu_and_mul(x)
    for num_threads in (2, 3, 5):
        set_num_threads(num_threads, pin=pin)
        assert get_num_threads() == num_threads
        for _ in range(20):
            assert np.array_equal(ops.silu_and_mul(x), expected)


def test_several_python_threads_at_once() -> None:
    set_num_threads(3)
    shape = {"num_kv_heads": 2, "group": 2, "head_dim": 64, "block_size": 16}
    cases = [make_attention_case(seed, lengths=[(1, 600), (30, 90)], **shape) for seed in range(4)]
    expected = [ops.paged_attention(*case.arguments()) for case in cases]

    def repeat(index: int) -> bool:
        return all(np.array_equal(ops.paged_attention(*cases[index].arguments()), expected[index]) for _ in range(40))

    def resize(_: int) -> bool:
        for i in range(40):
            set_num_threads(1 + i % 4)
        return True

    with ThreadPoolExecutor(5) as executor:
        results = [executor.submit(repeat, index) for index in range(4)] + [executor.submit(resize, 0)]
        assert all(result.result(timeout=120) for result in results)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_computes_with_its_own_pool() -> None:
    set_num_threads(2)
    x = np.ones((400, 1000), np.float32)
    expected = ops.silu_and_mul(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(ops.silu_and_mul(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
