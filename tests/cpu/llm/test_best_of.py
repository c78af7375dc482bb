"""best_of returns the most probable of the sequences that n alone would return."""

from __future__ import annotations

import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_runtime import LLM, SamplingParams

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def llm():
    options = {"device": "cpu", "dtype": "float32", "num_blocks": 100, "threads": 1, "model_impl": "python"}
    with LLM(str(tiny_checkpoint("llama")), **options) as llm:
        yield llm


def mean_logprob(output) -> float:
    return sum(entry.logprob for entry in output.logprobs) / len(output.logprobs)


def test_the_best_of_all_are_returned(llm):
    options = {"temperature": 1.0, "seed": 3, "max_tokens": 8, "logprobs": 1}
    everything = llm.generate(PROMPT, SamplingParams(n=6, **options))[0].outputs
    ranked = sorted(everything, key=mean_logprob, reverse=True)
    for best_of, n in [(6, 2), (6, 1), (6, 6)]:
        result = llm.generate(PROMPT, SamplingParams(n=n, best_of=best_of, **options))[0]
        wanted = ranked[:n] if best_of > n else everything
        assert [output.token_ids for output in result.outputs] == [output.token_ids for output in wanted]
        assert [output.index for output in result.outputs] == list(range(n))


def test_log_probabilities_that_nobody_asked_for_do_not_come(llm):
    result = llm.generate(PROMPT, SamplingParams(best_of=3, temperature=1.0, seed=3, max_tokens=4))[0]
    assert len(result.outputs) == 1
    assert result.outputs[0].logprobs is None
    assert result.outputs[0].finish_reason == "length"


def test_a_streamed_request_gets_one_output(llm):
    outputs = []
    sampling = SamplingParams(n=2, best_of=4, temperature=1.0, seed=3, max_tokens=6)
    prepared = llm.master.prepare_completion(PROMPT, sampling)
    llm.master.submit(prepared, outputs.append)
    assert llm.master.drain(30.0)
    assert [len(output.outputs) for output in outputs] == [2]
    assert outputs[0].finished
