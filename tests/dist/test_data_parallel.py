"""Two data-parallel ranks on one CPU: the answers of one rank, spread over two caches."""

from __future__ import annotations

import random

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM

SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=16, n=2, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=12, beam_width=3, n=2),
    SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1),
]


def prompts() -> list[list[int]]:
    chance = random.Random(5)
    shared = [chance.randrange(256) for _ in range(40)]
    return [shared[: 20 * (index % 3)] + [chance.randrange(256) for _ in range(3 + 5 * index)] for index in range(12)]


def answers(model_impl: str, **options):
    """Return all tokens, and the blocks that the engine side has in all."""
    flat = {"model_impl": model_impl, "device": "cpu", "dtype": "float32", "num_blocks": 40, "threads": 1}
    with LLM(str(tiny_checkpoint("llama")), **flat, check_integrity=True, **options) as llm:
        params = [SAMPLINGS[index % len(SAMPLINGS)] for index in range(12)]
        outputs = llm.generate(prompts(), params, use_tqdm=False)
        return [[sequence.token_ids for sequence in output.outputs] for output in outputs], llm.master.ready.num_blocks


@pytest.mark.parametrize("enable_schedule_overlap", [False, True])
@pytest.mark.parametrize("model_impl", ["native", "python"])
def test_two_ranks_answer_as_one_does(model_impl: str, enable_schedule_overlap: bool) -> None:
    one, num_blocks = answers(model_impl)
    two, num_blocks_of_two = answers(model_impl, dp_size=2, enable_schedule_overlap=enable_schedule_overlap)
    assert two == one
    assert (num_blocks, num_blocks_of_two) == (39, 78)


def test_both_ranks_get_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from xllm_runtime.engine.llm import LLMEngine

    steps: list[list[int]] = []
    submit = LLMEngine.submit

    def spy(self, group):
        steps.append([len(batch) for batch in group.batches])
        submit(self, group)

    monkeypatch.setattr(LLMEngine, "submit", spy)
    answers("native", dp_size=2)
    assert any(min(counts) >= 3 for counts in steps)
    assert all(len(counts) == 2 for counts in steps)
