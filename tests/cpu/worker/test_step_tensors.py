"""A step's arrays on their way to the device: packed into one, and what attention is told of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.decode_steps import StepMaker
from xllm_runtime.executor.step_tensors import sampled_sequences, upload_step
from xllm_runtime.platform.uploads import ALIGNMENT, pack, packed_bytes, unpack, upload

CPU = torch.device("cpu")
TYPES = (np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64)
SHAPES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5)) | st.tuples(st.integers(0, 40)), min_size=1, max_size=8
)


@given(SHAPES, st.data())
@settings(deadline=None, max_examples=60)
def test_arrays_come_out_of_one_buffer_as_they_went_in(shapes, data):
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 99, shape).astype(data.draw(st.sampled_from(TYPES))) for shape in shapes]
    arrays = [array.T if data.draw(st.booleans()) else array for array in arrays]  # some with strides of their own
    buffer = np.full(sum(map(packed_bytes, arrays)) + 3, 0xEE, np.uint8)
    pack(arrays, buffer)
    packed = torch.from_numpy(buffer)
    for array, part in zip(arrays, unpack(packed, arrays), strict=True):
        assert part.numpy().dtype == array.dtype
        assert np.array_equal(part.numpy(), array)
        assert array.size == 0 or (part.data_ptr() - packed.data_ptr()) % ALIGNMENT == 0
    assert (buffer[-3:] == 0xEE).all()


def test_on_a_cpu_nothing_is_copied():
    array = np.arange(4, dtype=np.int32)
    [tensor] = upload([array], CPU)
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2, 3]


def mixed_step():
    maker = StepMaker(40, 16)
    maker.step([(0, range(20)), (1, range(5))])
    return maker.step([(0, [3]), (1, [4]), (2, range(40)), (3, range(3))])


def test_a_step_keeps_its_numbers():
    step = mixed_step()
    tensors = upload_step(step, CPU)
    assert tensors.token_ids.dtype == torch.int32
    assert tensors.positions.dtype == tensors.sample_rows.dtype == torch.int64
    for name in ("token_ids", "positions", "sample_rows"):
        assert getattr(tensors, name).tolist() == getattr(step, name).tolist()
    for name in ("slot_mapping", "block_tables", "query_start", "seq_lens"):
        assert getattr(tensors.attention, name).tolist() == getattr(step, name).tolist()
    assert tensors.attention.host_lengths == (step.query_start.tolist(), step.seq_lens.tolist())
    assert tensors.attention.last is None


def test_rows_behind_the_last_are_skipped_where_few_are_sampled():
    maker = StepMaker(40, 16)
    step = maker.step([(0, range(40)), (1, range(30))])
    assert sampled_sequences(step).tolist() == [0, 1]
    step.sample_rows = step.sample_rows[1:]
    assert sampled_sequences(step).tolist() == [1]
    step.prompt_logprobs = [(0, 1, np.zeros(3, np.int32))]
    assert sampled_sequences(step) is None
    assert sampled_sequences(mixed_step()) is None  # 44 tokens for four rows
