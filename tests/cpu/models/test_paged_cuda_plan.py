"""How a step's sequences are told apart before the GPU attends to them; runs without a GPU."""

from __future__ import annotations

import torch

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
    assert plan.prefills.rows is None
    assert plan.prefills.has_own_keys
    assert plan.prefills.query_start.tolist() == plan.prefills.key_start.tolist() == [0, 20, 25]
    assert plan.prefills.max_query_len == 20


def test_chunks_and_decodes_are_told_apart():
    maker = StepMaker(40, 16)
    first = metadata_of(maker.step([(0, [1] * 20), (1, [2] * 5)]))
    metadata = metadata_of(maker.step([(1, [3]), (0, [1] * 30), (2, [4] * 3)]))
    plan = plan_step(metadata, 16)
    assert plan.decodes is not None
    assert plan.decodes.rows.tolist() == [0]
    assert plan.decodes.seq_lens.tolist() == [6]
    assert torch.equal(plan.decodes.block_tables, metadata.block_tables[:1])
    prefills = plan.prefills
    assert prefills is not None
    assert prefills.rows is not None
    assert prefills.rows.tolist() == list(range(1, 34))
    assert prefills.query_start.tolist() == [0, 30, 33]
    assert prefills.key_start.tolist() == [0, 50, 53]
    assert (prefills.max_query_len, prefills.max_key_len) == (30, 50)
    assert not prefills.has_own_keys
    assert prefills.seq_lens.tolist() == [50, 3]
    assert torch.equal(prefills.block_tables, metadata.block_tables[1:])
    assert prefills.key_slots()[:20].tolist() == first.slot_mapping[:20].tolist()
    assert prefills.key_slots()[20:].tolist() == metadata.slot_mapping[1:].tolist()


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
