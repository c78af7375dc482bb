"""Greedy tokens of tiny models equal those of transformers, however the steps are cut and whoever shares them.

One engine serves all cases of a model; each case has a block manager and a scheduler of its own over the engine's pool.
"""

from __future__ import annotations

import random

import pytest
import torch

from support.engine_side import BLOCK_SIZE, EngineSide
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime.engine.llm import LLMEngine

NUM_TOKENS = 64
FULL = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
TIGHT_POOL = {3: 12, 16: 24}
"""Blocks that force preemption, by number of requests; each needs up to 8."""


def prompts() -> list[list[int]]:
    """16 prompts of 1 to 50 tokens, half of which begin with the same 33."""
    chance = random.Random(1)
    shared = [chance.randrange(256) for _ in range(33)]
    lengths = [1, 15, 16, 17, 31, 32, 50, 5]
    own = [[chance.randrange(256) for _ in range(length)] for length in lengths]
    return [prompt for index in range(8) for prompt in (own[index], [*shared, *own[-1 - index][:17]])]


def reference(folder, batch: list[list[int]]) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for prompt in batch:
            past, token_ids, answer = None, torch.tensor([prompt]), []
            for _ in range(NUM_TOKENS):
                output = model(input_ids=token_ids, past_key_values=past, use_cache=True)
                past, token_ids = output.past_key_values, output.logits[:, -1:].argmax(dim=-1)
                answer.append(int(token_ids))
            answers.append(answer)
    return answers


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def served(request):
    """Return (engine, prompts, reference answers)."""
    folder = tiny_checkpoint(request.param)
    flat = {"model": str(folder), "device": "cpu", "dtype": "float32", "num_blocks": 200, "threads": 1}
    files = resolve_model(str(folder), LoadConfig())
    engine = LLMEngine(XLLMConfig.from_flat(flat), files, load_model_args(files))
    batch = prompts()
    yield engine, batch, reference(folder, batch)
    engine.close()


@pytest.mark.parametrize("is_tight", [False, True], ids=["roomy", "preempted"])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("chunk", [1, 16, 17, 0], ids=["chunk1", "chunk16", "chunk17", "whole"])
@pytest.mark.parametrize("enable_prefix_cache", [False, True], ids=["no-prefix-cache", "prefix-cache"])
def test_greedy_tokens_equal_the_reference(served, enable_prefix_cache, chunk, batch_size, is_tight):
    if is_tight and batch_size == 1:
        pytest.skip("one sequence alone is never preempted")
    engine, batch, wanted = served
    side = EngineSide(
        engine,
        TIGHT_POOL[batch_size] if is_tight else 150,
        max_model_len=192,
        enable_prefix_cache=enable_prefix_cache,
        max_prefill_chunk=chunk,
        max_num_seqs=batch_size,
    )
    requests = range(16) if batch_size == 16 else range(2, 2 + 3)
    for index in requests:
        side.add(str(index), batch[index], FULL)
    side.finish()
    for index in requests:
        assert side.tokens[str(index), 0] == wanted[index]
    assert (side.stats.num_preemptions > 0) == is_tight
    assert side.holds_nothing


def test_random_requests_and_aborts_in_24_blocks(served):
    engine, _, _ = served
    chance = random.Random(3)
    shared = [chance.randrange(256) for _ in range(40)]
    made = []
    for number in range(200):
        prompt = shared[: chance.choice([0, 16, 33, 40])] + [
            chance.randrange(256) for _ in range(chance.randrange(1, 30))
        ]
        made.append((f"r{number}", prompt, SamplingParams(temperature=0.0, max_tokens=chance.randrange(1, 25))))
    roomy = EngineSide(engine, 199, max_model_len=192)
    for request in made:
        roomy.add(*request)
    roomy.finish()
    tight = EngineSide(engine, 24, max_model_len=192, max_num_batched_tokens=64, max_num_seqs=16)
    waiting, live, aborted = list(made), [], set()
    while waiting or tight.scheduler.has_work:
        for _ in range(chance.randrange(0, 4)):
            if waiting:
                tight.add(*waiting[0])
                live.append(waiting.pop(0)[0])
        if live and chance.random() < 0.2:
            aborted.add(live.pop(chance.randrange(len(live))))
            tight.abort(*aborted)
        tight.step()  # the loop checks the invariants after each step
    assert tight.stats.num_preemptions > 0
    assert len(aborted) > 20
    for request_id, _, _ in made:
        key = (request_id, 0)
        got, wanted = tight.tokens.get(key, []), roomy.tokens[key]
        assert got == (wanted[: len(got)] if tight.reasons[key] == "abort" else wanted)
    assert tight.holds_nothing


def test_a_preempted_answer_is_complete(served):
    engine, batch, _ = served
    sampling = SamplingParams(temperature=0.0, max_tokens=35, ignore_eos=True)
    answers = []
    for num_blocks in (199, 7):
        side = EngineSide(engine, num_blocks, max_model_len=7 * BLOCK_SIZE, enable_prefix_cache=False)
        for index in (12, 13):
            side.add(str(index), (batch[index] * 34)[:34], sampling)
        side.finish()
        answers.append((side.tokens, side.stats.num_preemptions))
    (roomy, none), (tight, some) = answers
    assert (none, some > 0) == (0, True)
    assert roomy == tight
    assert all(len(tokens) == 35 for tokens in tight.values())
