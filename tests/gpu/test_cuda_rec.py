"""Beams on the GPU: attention and choice against torch and the CPU, graphs against eager rounds, batches against single searches."""

from __future__ import annotations

import pytest
import torch

from support.rec_models import HISTORIES, random_items, write_catalogue
from support.tiny_checkpoints import tiny_checkpoint
from xllm_runtime.attention.beams import BeamMetadata, attend_with_torch
from xllm_runtime.recommender import Recommender

pytestmark = pytest.mark.gpu
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
OPTIONS = {"device": "cuda", "dtype": "bfloat16", "num_blocks": 400, "check_integrity": True}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("round_index", [0, 3])
@pytest.mark.parametrize("num_splits", [1, 3, 8])
def test_attention_equals_torch(head_dim: int, round_index: int, num_splits: int):
    from xllm_runtime.attention.beams_cuda import attend_on_gpu

    torch.manual_seed(0)
    lens, widths, block_size = [33, 700, 1], [16, 16, 16], 16
    num_rows = sum(widths)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    tables = torch.arange(1, 1 + 3 * 44, device="cuda", dtype=torch.int32).view(3, 44)
    cache = normal(140, block_size, 2, head_dim), normal(140, block_size, 2, head_dim)
    own = normal(4, num_rows, 2, head_dim), normal(4, num_rows, 2, head_dim)
    ancestors = torch.randint(0, num_rows, (num_rows, round_index + 1), device="cuda", dtype=torch.int32)
    ancestors[:, -1] = torch.arange(num_rows, device="cuda")
    metadata = BeamMetadata(
        slot_mapping=torch.empty(0, dtype=torch.int64, device="cuda"),
        block_tables=tables,
        query_start=torch.tensor([0, 16, 32, 48], dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_query_len=1,
        round_index=round_index,
        ancestors=ancestors,
        num_splits=num_splits,
        max_beams=16,
    )
    arguments = normal(num_rows, 4, head_dim), normal(num_rows, 2, head_dim), normal(num_rows, 2, head_dim)
    twin = tuple(kept.clone() for kept in own)
    expected = attend_with_torch(*arguments, cache, twin, metadata, head_dim**-0.5)
    found = attend_on_gpu(*arguments, cache, own, metadata, head_dim**-0.5)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)
    for kept, other in zip(own, twin, strict=True):
        assert torch.equal(kept, other)


@pytest.fixture(scope="module")
def checkpoint() -> str:
    return str(tiny_checkpoint("qwen3", **SHAPE))


def agreement(one: list, two: list) -> float:
    """Return the share of paths that are found in both."""
    shares = []
    for first, second in zip(one, two, strict=True):
        paths = {tuple(path.token_ids) for path in first.paths}
        shares.append(len(paths & {tuple(path.token_ids) for path in second.paths}) / max(len(paths), 1))
    return min(shares)


def exact(outputs: list) -> list:
    return [[(path.token_ids, path.score, path.item_ids) for path in output.paths] for output in outputs]


def test_graphs_give_what_eager_rounds_give(checkpoint: str, tmp_path):
    item_file = str(write_catalogue(tmp_path, random_items(400)))
    with Recommender(checkpoint, item_file=item_file, enable_prefix_cache=False, **OPTIONS) as opened:
        for width in (1, 7, 64):
            eager, captured, again = (opened.recommend([HISTORIES[1]], beam_width=width) for _ in range(3))
            assert exact(eager) == exact(captured) == exact(again)
        opened.change_catalogue(write_catalogue(tmp_path, random_items(60, seed=3), "other.bin"))
        known = {tuple(row) for row in random_items(60, seed=3).tokens.tolist()}
        assert all(tuple(path.token_ids) in known for path in opened.recommend([HISTORIES[1]], beam_width=64)[0].paths)


@pytest.mark.parametrize(
    "changes",
    [{"enable_rec_fast_sampler": False}, {"enable_rec_prefill_only": True}, {"enable_prefix_cache": False}],
)
def test_answers_do_not_depend_on_how_they_are_computed(checkpoint: str, tmp_path, changes: dict):
    item_file = str(write_catalogue(tmp_path, random_items(400)))
    with Recommender(checkpoint, item_file=item_file, **OPTIONS) as opened:
        alone = [opened.recommend([history], beam_width=24)[0] for history in HISTORIES]
        together = opened.recommend(HISTORIES, beam_width=24)
        drawn = opened.recommend(HISTORIES, beam_width=5, is_sampled=True, seed=1)
    assert all(output.error is None for output in (*alone, *together, *drawn))
    assert agreement(alone, together) >= 0.9  # bfloat16: near ties at the end of the list may fall otherwise
    with Recommender(checkpoint, item_file=item_file, **OPTIONS | changes) as other:
        assert agreement(other.recommend(HISTORIES, beam_width=24), together) >= 0.9


def test_several_pipelines(checkpoint: str, tmp_path):
    item_file = str(write_catalogue(tmp_path, random_items(400)))
    with Recommender(
        checkpoint, item_file=item_file, rec_worker_max_concurrency=3, max_num_seqs=2, **OPTIONS
    ) as opened:
        expected = [opened.recommend([history], beam_width=16)[0] for history in HISTORIES]
        found = opened.recommend(HISTORIES * 8, beam_width=16)
    assert all(output.error is None for output in found)
    assert agreement(expected * 8, found) >= 0.85
