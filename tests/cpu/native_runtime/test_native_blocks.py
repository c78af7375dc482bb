"""Blocks of the C++ decoder's cache: copies, host slots, payloads of an archive."""

from __future__ import annotations

import numpy as np
import pytest

from support.loaded_models import model_files
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import XLLMConfig
from xllm_framework.kv_cache import BlockMoves
from xllm_framework.model import load_model_args
from xllm_runtime.worker.native import NativeWorker

NUM_BLOCKS, BLOCK_SIZE = 12, 4


@pytest.fixture
def worker() -> NativeWorker:
    folder = tiny_checkpoint("llama")
    config = XLLMConfig.from_flat({"model": str(folder), "device": "cpu", "threads": 1, "num_blocks": NUM_BLOCKS})
    files = model_files(folder)
    worker = NativeWorker(config, files, load_model_args(files))
    worker.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE)
    decoder = worker._decoder
    content = np.random.default_rng(0).integers(0, 256, (NUM_BLOCKS, decoder.num_block_bytes), np.uint8)
    decoder.write_blocks(np.arange(NUM_BLOCKS, dtype=np.int32), content)
    return worker


def contents(worker: NativeWorker) -> np.ndarray:
    return worker._decoder.read_blocks(np.arange(NUM_BLOCKS, dtype=np.int32))


def test_copies_are_whole_and_touch_nothing_else(worker: NativeWorker) -> None:
    before = contents(worker)
    worker._decoder.copy_blocks(np.array([[1, 7], [2, 8]], np.int32))
    expected = before.copy()
    expected[[7, 8]] = before[[1, 2]]
    np.testing.assert_array_equal(contents(worker), expected)


def test_a_block_goes_to_the_host_and_comes_back_elsewhere(worker: NativeWorker) -> None:
    before = contents(worker)
    worker.allocate_host_blocks(3)
    worker.move_blocks(BlockMoves(to_host=[(4, 2), (5, 0)]))
    worker._decoder.write_blocks(np.array([4, 5], np.int32), np.zeros((2, before.shape[1]), np.uint8))
    worker.move_blocks(BlockMoves(to_device=[(2, 9), (0, 10)]))
    after = contents(worker)
    np.testing.assert_array_equal(after[[9, 10]], before[[4, 5]])
    assert not after[[4, 5]].any()


def test_moves_out_come_before_moves_in(worker: NativeWorker) -> None:
    before = contents(worker)
    worker.allocate_host_blocks(2)
    worker.move_blocks(BlockMoves(to_host=[(1, 0)]))
    worker.move_blocks(BlockMoves(to_host=[(2, 1)], to_device=[(0, 2)]))
    worker.move_blocks(BlockMoves(to_device=[(1, 3)]))
    np.testing.assert_array_equal(contents(worker)[[2, 3]], before[[1, 2]])


def test_payloads_go_to_an_archive_and_come_back(worker: NativeWorker) -> None:
    before = contents(worker)
    kept: dict[bytes, bytes] = {}
    worker.attach_archive(kept.__setitem__)
    worker.move_blocks(BlockMoves(to_archive=[(3, b"three"), (4, b"four")]))
    assert {len(payload) for payload in kept.values()} == {worker.payload_bytes()}
    worker.move_blocks(BlockMoves(from_archive=[(kept[b"three"], 10), (kept[b"four"], 11)]))
    np.testing.assert_array_equal(contents(worker)[[10, 11]], before[[3, 4]])


@pytest.mark.parametrize("block", [-1, NUM_BLOCKS])
def test_a_block_that_does_not_exist_is_refused(worker: NativeWorker, block: int) -> None:
    decoder = worker._decoder
    with pytest.raises(ValueError, match="blocks"):
        decoder.read_blocks(np.array([block], np.int32))
    with pytest.raises(ValueError, match="blocks"):
        decoder.copy_blocks(np.array([[0, block]], np.int32))


def test_contents_of_another_size_are_refused(worker: NativeWorker) -> None:
    with pytest.raises(ValueError, match="bytes"):
        worker._decoder.write_blocks(np.array([1], np.int32), bytes(10))
