"""How a step's sequences are told apart before the GPU attends to them; runs without a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.decode_steps import StepMaker
from xllm_runtime.attention import AttentionMetadata, AttentionSpec
from xllm_runtime.attention.paged_cuda import PagedCUDAAttention, plan_step


def metadata_of(step):
    return AttentionMetadata(
        slot_mapping=torch.from_numpy(step.slot_mapping),
        block_tables=torch.from_numpy(step.block_tables),
        query_start=torch.from_numpy(step.query_start),
        seq_lens=torch.from_numpy(step.seq_lens),
        max_query_len=step.max_query_len,
    )


def test_whole_prompts_need_no_gathering():
    metadata = metadata_of(StepMaker(40, 16).step([(0, [1] * 20), (1, [2] * 5)]))
    plan = plan_step(metadata, 16)
    assert plan.decodes is None
    assert plan.prefills is not None
    assert plan.prefills.rows == slice(0, 25)
    assert plan.prefills.has_own_keys
    assert plan.prefills.query_start.tolist() == plan.prefills.key_start.tolist() == [0, 20, 25]
    assert plan.prefills.max_query_len == 20


def test_chunks_and_decodes_are_told_apart():
    maker = StepMaker(40, 16)
    first = metadata_of(maker.step([(0, [1] * 20), (1, [2] * 5)]))
    metadata = metadata_of(maker.step([(1, [3]), (0, [1] * 30), (2, [4] * 3)]))
    plan = plan_step(metadata, 16)
    assert plan.decodes is not None
    assert plan.decodes.rows == slice(0, 1)
    assert plan.places is None
    assert plan.decodes.seq_lens.tolist() == [6]
    assert torch.equal(plan.decodes.block_tables, metadata.block_tables[:1])
    prefills = plan.prefills
    assert prefills is not None
    assert prefills.rows == slice(1, 34)
    assert prefills.query_start.tolist() == [0, 30, 33]
    assert prefills.key_start.tolist() == [0, 50, 53]
    assert (prefills.max_query_len, prefills.max_key_len) == (30, 50)
    assert not prefills.has_own_keys
    assert prefills.seq_lens.tolist() == [50, 3]
    assert torch.equal(prefills.block_tables, metadata.block_tables[1:])
    assert prefills.key_slots()[:20].tolist() == first.slot_mapping[:20].tolist()
    assert prefills.key_slots()[20:].tolist() == metadata.slot_mapping[1:].tolist()


def test_new_prompts_behind_decodes_have_their_own_keys():
    maker = StepMaker(40, 16)
    maker.step([(0, [1] * 20)])
    plan = plan_step(metadata_of(maker.step([(0, [1]), (1, [2] * 5), (2, [3] * 7)])), 16)
    assert plan.prefills is not None
    assert plan.prefills.has_own_keys
    assert plan.prefills.rows == slice(1, 13)
    assert plan.prefills.query_start.tolist() == plan.prefills.key_start.tolist() == [0, 5, 12]


def attended(counts, monkeypatch):
    """What a backend returns for sequences that bring so many tokens, where kernels are replaced by sums that tell who was asked."""
    maker = StepMaker(200, 16)
    maker.step([(i, [1] * (3 + i)) for i in range(len(counts))])
    metadata = metadata_of(maker.step([(i, [2] * count) for i, count in enumerate(counts)]))
    backend = PagedCUDAAttention.__new__(PagedCUDAAttention)
    backend._write_kv = lambda *_: None
    backend._scale = 1.0

    def attend_prompts(query, key, value, kv_cache, prefills, out, scale):
        assert out.data_ptr() != query.data_ptr()
        for first, last in pairwise(prefills.query_start.tolist()):
            assert last - first > 1
            out[first:last] = query[first:last] * 10

    def decode(query, key, value, kv_cache, decodes, out):
        assert len(query) == len(key) == len(value) == len(decodes.seq_lens) == len(decodes.block_tables)
        assert torch.equal(key, -query)
        out.copy_(query * 100)

    backend._attend_prompts = attend_prompts
    monkeypatch.setattr(PagedCUDAAttention, "_decode", lambda _, *args: decode(*args))
    query = torch.arange(1.0, sum(counts) + 1)[:, None, None].expand(-1, 2, 4)
    caches = (torch.zeros(200, 16, 1, 4),) * 2
    return backend.forward(query, -query, query, caches, metadata)[:, 0, 0].tolist()


@given(counts=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=8))
def test_every_row_is_attended_by_its_kind_and_stands_in_its_place(counts):
    if max(counts) == 1:
        counts = [*counts, 2]
    factors = [factor for count in counts for factor in [100 if count == 1 else 10] * count]
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = attended(counts, monkeypatch)
    assert found == [factor * row for row, factor in enumerate(factors, 1)]


@pytest.mark.parametrize(
    ("counts", "lie_together"), [([1, 1, 3], True), ([3, 1, 1], True), ([1, 3, 1], False), ([2, 1, 2], False)], ids=str
)
def test_rows_that_lie_together_are_not_gathered(counts, lie_together):
    maker = StepMaker(40, 16)
    maker.step([(i, [1] * 5) for i in range(len(counts))])
    plan = plan_step(metadata_of(maker.step([(i, [2] * count) for i, count in enumerate(counts)])), 16)
    assert plan.decodes is not None
    assert plan.prefills is not None
    assert (plan.places is None) is lie_together
    assert isinstance(plan.decodes.rows, slice) is isinstance(plan.prefills.rows, slice) is lie_together


def test_blocks_that_single_tokens_cannot_be_read_from_are_gathered():
    maker = StepMaker(40, 8)
    maker.step([(0, [1] * 9)])
    plan = plan_step(metadata_of(maker.step([(0, [2])])), 8)
    assert plan.decodes is None
    assert plan.prefills is not None
    assert len(plan.prefills.key_slots()) == 10


def test_it_serves_no_other_device():
    spec = AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert PagedCUDAAttention.explain(spec) == ["runs on a CUDA GPU, not on cpu"]
