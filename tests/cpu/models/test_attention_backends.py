"""The CPU kernels' attention against torch's, over random batches; and how a backend is chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_runtime.attention import AttentionMetadata, AttentionSpec, select_attention
from xllm_runtime.attention.sdpa import SDPAAttention, causal_mask

CPU = torch.device("cpu")


def spec_of(**changes) -> AttentionSpec:
    fields = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "dtype": torch.float32, "device": CPU}
    return AttentionSpec(**{**fields, **changes})


def random_step(lengths: list[tuple[int, int]], block_size: int, generator: torch.Generator):
    """Metadata of sequences with (known tokens, new tokens), blocks dealt at random, and the number of blocks."""
    needed = [-(-(known + new) // block_size) for known, new in lengths]
    order = torch.randperm(sum(needed), generator=generator) + 1
    tables = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    slots = []
    for row, ((known, new), count) in enumerate(zip(lengths, needed, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = blocks
        where = torch.arange(known, known + new)
        slots.append(blocks[where // block_size] * block_size + where % block_size)
    starts = torch.tensor([0, *(new for _, new in lengths)]).cumsum(0)
    metadata = AttentionMetadata(
        slot_mapping=torch.cat(slots),
        block_tables=tables,
        query_start=starts.int(),
        seq_lens=torch.tensor([known + new for known, new in lengths], dtype=torch.int32),
        max_query_len=max(new for _, new in lengths),
    )
    return metadata, sum(needed) + 1


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([8, 16, 24]),
    sliding_window=st.sampled_from([0, 1, 5, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_kernels_and_torch_agree(lengths, block_size, num_kv_heads, head_dim, sliding_window, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    metadata, num_blocks = random_step(lengths, block_size, generator)
    spec = spec_of(num_kv_heads=num_kv_heads, head_dim=head_dim, sliding_window=sliding_window, dtype=dtype)
    cache_shape = (num_blocks, block_size, num_kv_heads, head_dim)
    old = [torch.randn(cache_shape, generator=generator).to(dtype) for _ in range(2)]
    num_tokens = len(metadata.slot_mapping)
    query = torch.randn(num_tokens, 4, head_dim, generator=generator).to(dtype)
    key, value = (torch.randn(num_tokens, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2))
    results = []
    for name in ("sdpa", "paged_cpu"):
        cache = (old[0].clone(), old[1].clone())
        output = select_attention(spec, name).forward(query, key, value, cache, metadata)
        results.append((output, *cache))
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(results[1][0], results[0][0], atol=tolerance, rtol=tolerance)
    for ours, expected in zip(results[1][1:], results[0][1:], strict=True):
        assert torch.equal(ours, expected)


def test_mask_sees_itself_and_the_window_before_it():
    assert causal_mask(2, 5, 0, CPU).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(2, 5, 2, CPU).int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_softcap_bounds_the_scores():
    """With a tiny cap all scores are nearly equal, so the output is the mean of the values."""
    metadata, num_blocks = random_step([(0, 6)], 4, torch.Generator().manual_seed(0))
    cache = tuple(torch.zeros(num_blocks, 4, 2, 16) for _ in range(2))
    query, key, value = torch.randn(6, 4, 16) * 9, torch.randn(6, 2, 16) * 9, torch.randn(6, 2, 16)
    output = SDPAAttention(spec_of(softcap=1e-4)).forward(query, key, value, cache, metadata)
    torch.testing.assert_close(output[-1], value.mean(0).repeat_interleave(2, 0), atol=1e-3, rtol=0)


def test_the_fastest_that_fits_is_chosen():
    assert select_attention(spec_of()).name == "paged_cpu"
    assert select_attention(spec_of(dtype=torch.bfloat16)).name == "paged_cpu"
    assert select_attention(spec_of(dtype=torch.float16)).name == "sdpa"
    assert select_attention(spec_of(softcap=50.0)).name == "sdpa"
    assert select_attention(spec_of(device=torch.device("meta"))).name == "sdpa"


def test_a_refusal_names_every_reason():
    with pytest.raises(UnsupportedModel) as caught:
        select_attention(spec_of(dtype=torch.float16, device=torch.device("meta"), softcap=1.0), "paged_cpu")
    for reason in ("runs on the CPU, not on meta", "not in float16", "soft cap"):
        assert reason in caught.value.message
    with pytest.raises(
        InvalidConfig, match="'flash' is unknown; choose auto, paged_cpu, paged_cuda, paged_triton, sdpa"
    ):
        select_attention(spec_of(), "flash")
