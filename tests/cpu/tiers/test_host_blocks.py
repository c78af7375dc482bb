"""KV that goes to host memory and comes back is the same, and so are the answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.kv_cache import BlockMoves
from xllm_runtime import LLM, SamplingParams
from xllm_runtime.memory.host_blocks import HostBlocks
from xllm_runtime.worker.block_copy import copy_blocks

PROMPTS = [[number] * 70 + [9, 8, 7] for number in range(20, 25)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def caches(num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(num_blocks, 4, 2, 3), torch.randn(num_blocks, 4, 2, 3)) for _ in range(2)]


def test_moves_go_to_the_host_first():
    layers = caches(5)
    before = [tensor.clone() for layer in layers for tensor in layer]
    host = HostBlocks(layers, 3)
    host.move(BlockMoves(to_host=[(1, 0), (4, 2)], to_device=[(2, 1), (0, 3)]))
    for old, new in zip(before, (tensor for layer in layers for tensor in layer), strict=True):
        assert torch.equal(new[1], old[4])
        assert torch.equal(new[3], old[1])
        assert torch.equal(new[[0, 2, 4]], old[[0, 2, 4]])


@pytest.mark.parametrize("seed", range(3))
def test_scattered_blocks_come_back_as_they_went(seed):
    generator = np.random.default_rng(seed)
    layers = [(torch.randn(12, 2, 3), torch.randn(12, 2, 3)) for _ in range(2)]
    before = [tensor.clone() for layer in layers for tensor in layer]
    host = HostBlocks(layers, 9)
    blocks, slots = generator.permutation(12)[:7].tolist(), generator.permutation(9)[:7].tolist()
    host.move(BlockMoves(to_host=list(zip(blocks, slots, strict=True))))
    for tensor in (tensor for layer in layers for tensor in layer):
        tensor[blocks] = 0.0
    targets = generator.permutation(12)[:7].tolist()
    host.move(BlockMoves(to_device=list(zip(slots, targets, strict=True))))
    for old, tensor in zip(before, (tensor for layer in layers for tensor in layer), strict=True):
        assert torch.equal(tensor[targets], old[blocks])


def test_block_copies():
    layers = caches(5)
    before = [tensor.clone() for layer in layers for tensor in layer]
    copy_blocks(layers, [(1, 3), (2, 4)])
    copy_blocks(layers, [])
    for old, new in zip(before, (tensor for layer in layers for tensor in layer), strict=True):
        assert torch.equal(new, old[[0, 1, 2, 1, 2]])


@pytest.mark.parametrize("model_impl", ["python", "native"])
@pytest.mark.parametrize("enable_schedule_overlap", [False, True])
def test_answers_are_equal_with_and_without_the_host_tier(enable_schedule_overlap, model_impl):
    answers, cached = [], []
    for factor in (0.0, 5.0):
        options = {"device": "cpu", "dtype": "float32", "threads": 1, "model_impl": model_impl, "check_integrity": True}
        options |= {"num_blocks": 8, "host_blocks_factor": factor, "enable_schedule_overlap": enable_schedule_overlap}
        with LLM(str(tiny_checkpoint("llama")), **options) as llm:
            rounds = [llm.generate(PROMPTS, GREEDY, use_tqdm=False) for _ in range(2)]
        answers.append([[output.outputs[0].token_ids for output in outputs] for outputs in rounds])
        cached.append([output.num_cached_tokens for output in rounds[1]])
    assert answers[0] == answers[1]
    assert answers[0][0] == answers[0][1]
    assert cached == [[0] * 5, [64] * 5]
