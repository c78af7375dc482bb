"""Greedy tokens of tiny models equal those of transformers, however the steps are cut and whoever shares them.

One engine serves all cases of a model; each case has a block manager and a scheduler of its own over the engine's pool.
"""

from __future__ import annotations

import functools
import itertools
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

MODELS = ["llama native", "qwen2 native", "qwen3 native", "llama python", "qwen2 python", "qwen3 python"]
"""Model type and implementation."""
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


def cases() -> list:
    """Return every (model, prefix cache, chunk, batch size, tight pool)."""
    return [
        (model, enable_prefix_cache, chunk, batch_size, is_tight)
        for model in MODELS
        for enable_prefix_cache, chunk in itertools.product([False, True], [1, 16, 17, 0])
        for batch_size, is_tight in [(1, False), (3, False), (3, True), (16, False), (16, True)]
    ]


@functools.cache
def reference(model_type: str) -> list[list[int]]:
    """Return the greedy tokens by transformers, without any cache; behind a causal mask, padding on the right is inert."""
    from transformers import AutoModelForCausalLM

    batch = prompts()
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(model_type), dtype=torch.float32).eval()
    lengths = torch.tensor([len(prompt) for prompt in batch])
    rows = torch.arange(len(batch))
    token_ids = torch.zeros(len(batch), int(lengths.max()) + NUM_TOKENS, dtype=torch.int64)
    for row, prompt in enumerate(batch):
        token_ids[row, : len(prompt)] = torch.tensor(prompt)
    with torch.inference_mode():
        for step in range(NUM_TOKENS):
            logits = model(input_ids=token_ids, use_cache=False).logits
            token_ids[rows, lengths + step] = logits[rows, lengths + step - 1].argmax(dim=-1)
    return [token_ids[row, len(prompt) : len(prompt) + NUM_TOKENS].tolist() for row, prompt in enumerate(batch)]


@functools.cache
def serve(model: str):
    """Return (engine, prompts, reference answers), made once a model."""
    model_type, model_impl = model.split()
    folder = tiny_checkpoint(model_type)
    flat = {"model": str(folder), "model_impl": model_impl, "device": "cpu", "num_blocks": 200, "threads": 1}
    files = resolve_model(str(folder), LoadConfig())
    engine = LLMEngine(XLLMConfig.from_flat(flat), files, load_model_args(files))
    batch = prompts()
    return engine, batch, reference(model_type)


@pytest.mark.parametrize(("model", "enable_prefix_cache", "chunk", "batch_size", "is_tight"), cases())
def test_greedy_tokens_equal_the_reference(model, enable_prefix_cache, chunk, batch_size, is_tight):
    engine, batch, wanted = serve(model)
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


@pytest.mark.parametrize("model", MODELS[:3])
def test_random_requests_and_aborts_in_24_blocks(model):
    engine, _, _ = serve(model)
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


@pytest.mark.parametrize("model", MODELS)
def test_a_preempted_answer_is_complete(model):
    engine, batch, _ = serve(model)
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


def test_a_seeded_request_does_not_see_its_neighbours():
    engine, batch, _ = serve("llama native")
    seeded = SamplingParams(temperature=1.0, top_p=0.95, seed=0, max_tokens=32, n=2)
    alone = EngineSide(engine, 150, max_model_len=192)
    alone.add("a", batch[4], seeded)
    alone.finish()
    crowded = EngineSide(engine, 24, max_model_len=192, max_num_batched_tokens=64)
    for index, prompt in enumerate(batch[:8]):
        crowded.add(f"neighbour{index}", prompt, SamplingParams(temperature=1.5, max_tokens=40))
    crowded.step()
    crowded.add("a", batch[4], seeded)
    crowded.finish()
    for index in range(2):
        assert crowded.tokens["a", index] == alone.tokens["a", index]
    assert alone.tokens["a", 0] != alone.tokens["a", 1]
