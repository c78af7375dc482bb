"""The master with the script model, its engine side in a thread and in a process: the same behaviour."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import pytest
from xllm_script_model import EOS, RAISE, SLOW, script, token_id, write_checkpoint

from support.masters import TIMEOUT_S, Collector, start
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import EngineDead, InvalidRequest, ModelLoadError, QueueFull, ShuttingDown
from xllm_framework.request import SamplingParams
from xllm_runtime.master import ChatInput, LLMMaster


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("script") / "script-model")


def create(checkpoint, *, engine_process: bool, **options) -> LLMMaster:
    flat = {"model": str(checkpoint), "device": "cpu", "num_blocks": 201, "threads": 1, "check_integrity": True}
    return LLMMaster.create(XLLMConfig.from_flat({**flat, **options}), engine_process=engine_process)


@pytest.fixture(scope="module", params=["thread", "process"])
def master(request, checkpoint):
    master = create(checkpoint, engine_process=request.param == "process")
    yield master
    assert master.health() is None
    assert master.num_in_flight == 0
    master.close()


def slow(*tokens: int | str | bytes) -> str:
    return script(SLOW, *tokens)


def wait_until(condition) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_it_says_what_it_serves(master):
    assert master.model_name == "script-model"
    assert master.model_args.architecture == "ScriptForCausalLM"
    assert master.ready.max_model_len == 200 * 16
    assert (master.ready.num_blocks, master.ready.block_size, master.ready.device) == (200, 16, "cpu")
    assert master.ready.vocab_size == master.tokenizer.vocab_size


def test_a_completion(master):
    prepared, collector = start(master, "say " + script("Hello", " world"))
    result = collector.result()
    assert result.outputs[0].text == "Hello world"
    assert result.outputs[0].finish_reason == "stop"
    assert result.outputs[0].token_ids == [token_id("Hello"), token_id(" world"), token_id(EOS)]
    assert result.num_prompt_tokens == len(prepared.prompt_token_ids)
    timings = result.timings
    assert timings.arrival_s <= timings.first_scheduled_s <= timings.first_token_s <= timings.last_token_s
    assert timings.last_token_s <= timings.finished_s


def test_a_chat(master):
    chat = ChatInput(messages=[{"role": "user", "content": "say " + script("Hello")}])
    _, collector = start(master, chat)
    assert collector.result().outputs[0].text == "Hello"


def test_many_requests_at_once(master):
    wanted = [f"answer {number} " + "x" * (number % 7) for number in range(100)]
    started = [start(master, script(text), n=1 + (index % 2))[1] for index, text in enumerate(wanted)]
    for text, collector in zip(wanted, started, strict=True):
        assert {output.text for output in collector.result().outputs} == {text}


def test_streams_arrive_token_by_token(master):
    prepared, collector = start(master, slow(*"abcdefgh", *["x"] * 500))
    collector.wait_for(8)
    assert not collector.is_finished
    assert [delta.outputs[0].text for delta in collector.deltas[:8]] == list("abcdefgh")
    master.cancel(prepared.request_id)
    collector.result()


def test_cancel_frees_the_blocks(master):
    prepared, collector = start(master, slow(*["x"] * 500))
    collector.wait_for(3)
    assert master.stats.num_running == 1
    master.cancel(prepared.request_id)
    result = collector.result()
    assert result.outputs[0].finish_reason == "abort"
    wait_until(lambda: master.stats.num_running == 0)
    stats = master.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    assert start(master, script("A"))[1].result().outputs[0].text == "A"


def test_a_stop_string_ends_one_sequence_in_the_engine_too(master):
    steps_before = master.stats.num_steps
    _, collector = start(master, slow(*"abcWXYZ", *["x"] * 500), stop=("WXYZ",), n=2)
    result = collector.result()
    assert [output.text for output in result.outputs] == ["abc", "abc"]
    assert [output.stop_reason for output in result.outputs] == ["WXYZ", "WXYZ"]
    wait_until(lambda: master.stats.num_running == 0)
    assert master.stats.num_steps - steps_before < 200


def test_logprobs_of_output_and_prompt(master):
    prepared, collector = start(master, "ab" + script("X", "Y"), logprobs=2, prompt_logprobs=1)
    result = collector.result()
    output = result.outputs[0]
    assert [entry.token_id for entry in output.logprobs] == output.token_ids == [*b"XY", token_id(EOS)]
    assert all(entry.top[0] == (entry.token_id, entry.logprob) and len(entry.top) == 2 for entry in output.logprobs)
    assert all(-1e-6 < entry.logprob <= 0 for entry in output.logprobs), "the script forces its tokens"
    assert result.prompt_logprobs[0] is None
    assert [entry.token_id for entry in result.prompt_logprobs[1:]] == prepared.prompt_token_ids[1:]
    assert all(math.isfinite(entry.logprob) for entry in result.prompt_logprobs[1:])


def test_scoring_generates_nothing(master):
    _, collector = start(master, "score me", max_tokens=0, prompt_logprobs=0)
    result = collector.result()
    assert (result.outputs[0].token_ids, result.outputs[0].text, result.outputs[0].finish_reason) == ([], "", "length")
    assert len(result.prompt_logprobs) == len("score me")


def test_a_failing_request_fails_alone(master):
    bad = start(master, slow("a", "b", RAISE))[1]
    good = start(master, slow(*"abcdef"))[1]
    failed = bad.result()
    assert failed.outputs[0].text == "ab"
    assert failed.error_kind == "request_failed"
    assert "ScriptedFailure" in failed.error
    assert good.result().outputs[0].text == "abcdef"


def test_a_wrong_request_is_refused_before_it_is_submitted(master):
    with pytest.raises(InvalidRequest):
        start(master, "")
    with pytest.raises(InvalidRequest):
        start(master, "x" * 4000)


def test_the_same_client_id_twice(master):

    collectors = []
    for text in ("first", "second"):
        params = SamplingParams(temperature=0.0)
        prepared = master.prepare_completion(slow(text), params, request_id="mine")
        collectors.append(Collector())
        master.submit(prepared, collectors[-1])
    results = [collector.result() for collector in collectors]
    assert [result.outputs[0].text for result in results] == ["first", "second"]
    assert {result.request_id for result in results} == {"mine"}


def test_an_idle_master_does_not_spin(master):
    wait_until(lambda: master.num_in_flight == 0 and master.stats.num_running == 0)
    steps = master.stats.num_steps
    time.sleep(0.1)
    assert master.stats.num_steps == steps


def test_requests_from_many_threads(master):
    texts: dict[int, str] = {}

    def client(number: int) -> None:
        texts[number] = start(master, script(f"thread {number}"))[1].result().outputs[0].text

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: f"thread {number}" for number in range(8)}


def test_a_full_queue_refuses(checkpoint):
    master = create(checkpoint, engine_process=False, max_num_seqs=1, max_num_waiting=2)
    try:
        running = start(master, slow(*["x"] * 200))[1]
        running.wait_for(1)
        waiting = [start(master, script("A"))[1] for _ in range(2)]
        with pytest.raises(QueueFull, match="max_num_waiting") as caught:
            start(master, script("A"))
        assert caught.value.retry_after_s > 0
        assert [collector.result().outputs[0].text for collector in (running, *waiting)] == ["x" * 200, "A", "A"]
        assert start(master, script("B"))[1].result().outputs[0].text == "B"
    finally:
        master.close()


def test_drain_lets_running_requests_end(checkpoint):
    master = create(checkpoint, engine_process=False)
    collector = start(master, slow(*["x"] * 100))[1]
    assert not master.drain(0.0)
    with pytest.raises(ShuttingDown):
        start(master, script("A"))
    assert master.health() is not None
    assert master.drain(TIMEOUT_S)
    assert collector.is_finished
    assert collector.result().outputs[0].text == "x" * 100
    master.close()


@pytest.mark.parametrize("engine_process", [False, True])
def test_close_ends_what_runs(checkpoint, engine_process):
    master = create(checkpoint, engine_process=engine_process)
    collector = start(master, slow(*["x"] * 500))[1]
    collector.wait_for(1)
    master.close()
    master.close()
    assert collector.result().outputs[0].finish_reason == "abort"
    with pytest.raises((ShuttingDown, EngineDead)):
        start(master, script("A"))


def test_a_killed_engine_process_is_an_error_at_once(checkpoint):
    master = create(checkpoint, engine_process=True)
    reasons: list[str] = []
    master.on_engine_failure(reasons.append)
    collectors = [start(master, slow(*["x"] * 500), n=2)[1] for _ in range(3)]
    for collector in collectors:
        collector.wait_for(1)
    os.kill(master._client.pid, signal.SIGKILL)
    for collector in collectors:
        result = collector.result()
        assert result.error_kind == "engine_dead"
        assert "SIGKILL" in result.error
    wait_until(lambda: reasons)
    assert "SIGKILL" in reasons[0]
    assert "SIGKILL" in master.health()
    with pytest.raises(EngineDead):
        start(master, script("A"))
    master.close()


@pytest.mark.parametrize("engine_process", [False, True])
def test_a_model_that_cannot_be_loaded_is_one_sentence(checkpoint, tmp_path, engine_process, capfd):
    folder = write_checkpoint(tmp_path / "broken")
    (folder / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors") as caught:
        create(folder, engine_process=engine_process)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelLoadError, match="nowhere"):
        create(tmp_path / "nowhere", engine_process=engine_process)
    assert "Traceback" not in capfd.readouterr().err
