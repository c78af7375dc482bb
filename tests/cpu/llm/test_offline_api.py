"""The offline API with the script model."""

from __future__ import annotations

import threading

import pytest
from xllm_script_model import RAISE, SLOW, script, write_checkpoint

from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_runtime import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("script") / "script-model"))


@pytest.fixture(scope="module")
def llm(checkpoint):
    with LLM(checkpoint, device="cpu", num_blocks=200, threads=1, max_num_seqs=4, max_num_waiting=4) as llm:
        yield llm


def test_results_come_in_order(llm):
    texts = [f"number {number}" + "!" * (number % 5) for number in range(30)]
    outputs = llm.generate([script(text) for text in texts], GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == texts
    assert [output.request_id for output in outputs] == [str(number) for number in range(30)]
    assert all(output.finished for output in outputs)


def test_failing_prompts_lose_nobody_elses_result(llm):
    prompts = [script("A"), "", script("B", RAISE), script("C"), [5, 10**6], "x" * 10000, script("D")]
    outputs = llm.generate(prompts, GREEDY)
    texts = [output.outputs[0].text if output.outputs else None for output in outputs]
    assert texts == ["A", None, "B", "C", None, None, "D"]
    kinds = [output.error_kind for output in outputs]
    assert kinds == [None, "invalid_request", "request_failed", None, "invalid_request", "request_too_long", None]
    assert "ScriptedFailure" in outputs[2].error


def test_one_prompt_and_one_list_of_tokens(llm):
    assert llm.generate(script("A"), GREEDY)[0].outputs[0].text == "A"
    token_ids = llm.master.tokenizer.encode(script("B"), add_special_tokens=False)
    assert llm.generate(token_ids, GREEDY)[0].outputs[0].text == "B"
    assert llm.generate([token_ids, script("C")], GREEDY)[0].outputs[0].text == "B"
    assert llm.generate([], GREEDY) == []


def test_parameters_for_each_prompt(llm):
    params = [SamplingParams(temperature=0.0, max_tokens=1), SamplingParams(temperature=0.0, n=2)]
    first, second = llm.generate([script(*"abc")] * 2, params)
    assert [output.text for output in first.outputs] == ["a"]
    assert [output.text for output in second.outputs] == ["abc", "abc"]
    with pytest.raises(InvalidRequest, match="2 entries for 3 prompts"):
        llm.generate(["x"] * 3, params)


def test_chat(llm):
    conversations = [[{"role": "user", "content": script(text)}] for text in ("one", "two")]
    assert [output.outputs[0].text for output in llm.chat(conversations, GREEDY)] == ["one", "two"]
    assert llm.chat(conversations[0], GREEDY)[0].outputs[0].text == "one"
    assert llm.chat([[]], GREEDY)[0].error_kind == "invalid_request"


def test_the_progress_bar_counts_to_the_end(llm, capsys):
    llm.generate([script("A")] * 20, GREEDY)
    assert "20/20" in capsys.readouterr().err
    llm.generate([script("A")] * 2, GREEDY)
    assert capsys.readouterr().err == ""


def test_an_interrupt_aborts_what_runs(llm, monkeypatch):
    calls = threading.Event()
    prepare = llm.master.prepare_completion

    def interrupted(*arguments, **options):
        if calls.is_set():
            raise KeyboardInterrupt
        calls.set()
        return prepare(*arguments, **options)

    monkeypatch.setattr(llm.master, "prepare_completion", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([script(SLOW, *["x"] * 500)] * 2, GREEDY)
    assert llm.master.drain(30.0), "the request that ran was not aborted"
    llm.master._is_draining = False


def test_unknown_options_are_named(checkpoint):
    with pytest.raises(InvalidConfig, match=r"blok_size.*LLM"):
        LLM(checkpoint, blok_size=3)
