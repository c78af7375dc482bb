"""The dispatcher, fed by hand: text, stop strings, ends, cancellation, failing callbacks, a dead engine."""

from __future__ import annotations

import copy
import queue
import threading

import pytest
from xllm_script_model import EOS, token_id, write_checkpoint

from xllm_framework.config import LoadConfig
from xllm_framework.errors import EngineDead, InvalidRequest
from xllm_framework.model.source import resolve_model
from xllm_framework.request import RequestOutput, SamplingParams
from xllm_framework.request.messages import (
    AddRequest,
    EngineFailed,
    EngineStats,
    SequenceDelta,
    StepOutputs,
    WireLogprob,
)
from xllm_framework.tokenizer import load_tokenizer
from xllm_runtime.master.dispatcher import MAX_DIRECT_DELTAS, RequestOutputDispatcher
from xllm_runtime.master.prepared_request import PreparedRequest

EOS_ID = token_id(EOS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("script"))
    return load_tokenizer(resolve_model(str(folder), LoadConfig()))


class Front:
    """A dispatcher whose engine side is the test."""

    def __init__(self, tokenizer):
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.aborted: list = []
        self.failures: list[EngineFailed] = []
        self.dispatcher = RequestOutputDispatcher(self.events, tokenizer, self.aborted.extend, self.failures.append)
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.dispatcher.start()

    def add(self, request_id: str = "a", callback=None, **sampling) -> None:
        message = AddRequest(request_id, [1, 2, 3], SamplingParams(**sampling), arrival_time_s=1.0)
        outputs = self.outputs.setdefault(request_id, [])
        self.dispatcher.add(PreparedRequest(message, "prompt", None), callback or outputs.append)

    def step(self, *deltas: SequenceDelta) -> None:
        self.events.put(StepOutputs(list(deltas), EngineStats(num_steps=7)))

    def end(self) -> None:
        self.dispatcher.close()

    def whole(self, request_id: str = "a") -> RequestOutput:
        first, *rest = copy.deepcopy(self.outputs[request_id])
        for output in rest:
            first.extend(output)
        return first


@pytest.fixture
def front(tokenizer):
    front = Front(tokenizer)
    yield front
    front.end()


def delta(*tokens: int | str | bytes, end: str | None = None, index: int = 0, request_id: str = "a", **more):
    ids = [token if isinstance(token, int) else token_id(token) for token in tokens]
    return SequenceDelta(request_id, index, ids, end, **more)


def test_text_arrives_in_deltas_without_the_end_token(front):
    front.add()
    front.step(delta("Hello"))
    front.step(delta(" world"))
    front.step(delta(EOS_ID, end="stop", stop_reason=EOS_ID))
    front.end()
    assert [output.outputs[0].text for output in front.outputs["a"]] == ["Hello", " world", ""]
    assert [output.finished for output in front.outputs["a"]] == [False, False, True]
    assert front.outputs["a"][0].prompt == "prompt"
    assert front.outputs["a"][1].prompt is None
    whole = front.whole()
    assert whole.outputs[0].token_ids == [token_id("Hello"), token_id(" world"), EOS_ID]
    assert whole.outputs[0].num_output_tokens == 3
    assert whole.outputs[0].finish_reason == "stop"
    assert whole.outputs[0].stop_reason is None
    assert front.dispatcher.stats.num_steps == 7


def test_a_stop_token_id_is_named(front):
    front.add(stop_token_ids=(token_id("A"),))
    front.step(delta("B", "A", end="stop", stop_reason=token_id("A")))
    front.end()
    assert front.whole().outputs[0].text == "B"
    assert front.whole().outputs[0].stop_reason == token_id("A")


def test_characters_split_over_tokens_come_whole(front):
    front.add()
    emoji, hanzi = "😀".encode(), "客单价".encode()
    for piece in (emoji[:2], emoji[2:], hanzi[:2], hanzi[2:5], hanzi[5:]):
        front.step(delta(piece))
    front.step(delta(EOS_ID, end="stop"))
    front.end()
    assert "\ufffd" not in "".join(output.outputs[0].text for output in front.outputs["a"])
    assert front.whole().outputs[0].text == "😀客单价"


def test_an_incomplete_character_at_the_end_is_replaced(front):
    front.add()
    front.step(delta("A", "😀".encode()[:2], end="length"))
    front.end()
    assert front.whole().outputs[0].text == "A\ufffd"


def test_nothing_of_a_stop_string_leaks(front):
    front.add(stop=("WXYZ",))
    for piece in ("A", "W", "XY", "Z"):
        front.step(delta(piece))
    front.step(delta("B"))
    front.end()
    assert [output.outputs[0].text for output in front.outputs["a"]] == ["A", "", "", ""]
    last = front.outputs["a"][-1]
    assert (last.finished, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == (True, "stop", "WXYZ")
    assert front.aborted == ["a"]


def test_a_stop_string_that_ends_inside_a_token(front):
    front.add(stop=("b,",))
    front.step(delta("A", "b,c", "X"))
    front.end()
    assert front.whole().outputs[0].text == "A"
    assert front.whole().outputs[0].token_ids == [token_id("A"), token_id("b,c")], "tokens behind the match are dropped"


def test_a_near_miss_is_delivered(front):
    front.add(stop=("ABCD",))
    front.step(delta("ABCX"))
    front.step(delta("ABC"))
    front.step(delta(EOS_ID, end="stop"))
    front.end()
    assert front.whole().outputs[0].text == "ABCXABC"
    assert front.whole().outputs[0].stop_reason is None


def test_a_stop_string_on_the_last_token_wins_over_length(front):
    front.add(stop=("AB",))
    front.step(delta("A"))
    front.step(delta("B", end="length"))
    front.end()
    assert front.whole().outputs[0].finish_reason == "stop"
    assert front.aborted == []


def test_the_stop_string_may_be_kept(front):
    front.add(stop=("AB",), include_stop_str_in_output=True)
    front.step(delta("X", "AB"))
    front.end()
    assert front.whole().outputs[0].text == "XAB"


def test_each_index_ends_once_and_the_request_once(front):
    front.add(n=3, stop=("Z",))
    front.step(delta("A", index=0), delta("B", index=1), delta("C", index=2))
    front.step(delta("Z", index=1), delta("D", index=0))
    front.step(delta("Z", index=1), delta(EOS_ID, index=2, end="stop"))  # one step more ran before the abort arrived
    front.step(delta(index=1, end="abort"), delta(EOS_ID, index=0, end="stop"))
    front.end()
    ends = [part.index for output in front.outputs["a"] for part in output.outputs if part.finish_reason]
    assert sorted(ends) == [0, 1, 2]
    assert [output.finished for output in front.outputs["a"]] == [False, False, False, True]
    assert front.aborted == [("a", 1)]
    whole = front.whole()
    assert [part.text for part in whole.outputs] == ["AD", "B", "C"]
    assert whole.outputs[1].stop_reason == "Z"


def test_logprobs_follow_the_tokens(front):
    front.add(logprobs=1)
    entry = WireLogprob(65, -0.5, [65, 66], [-0.5, -1.0])
    front.step(delta(65, logprobs=[entry], prompt_logprobs=[None, entry], num_cached_tokens=2))
    front.step(delta(EOS_ID, end="stop", logprobs=[WireLogprob(EOS_ID, -0.1, [], [])]))
    front.end()
    whole = front.whole()
    assert whole.outputs[0].logprobs == [(65, -0.5, [(65, -0.5), (66, -1.0)]), (EOS_ID, -0.1, [])]
    assert whole.prompt_logprobs == [None, (65, -0.5, [(65, -0.5), (66, -1.0)])]
    assert whole.num_cached_tokens == 2


def test_after_cancel_only_the_end_comes(front):
    front.add(n=2)
    front.step(delta("A"))
    while not front.outputs["a"]:
        pass
    front.dispatcher.cancel("a")
    front.dispatcher.cancel("a")
    front.dispatcher.cancel("unknown")
    front.step(delta("B"), delta("B", index=1))
    front.step(delta(end="abort"), delta(end="abort", index=1))
    front.end()
    assert len(front.outputs["a"]) == 2
    last = front.outputs["a"][-1]
    assert last.finished
    assert [(part.index, part.text, part.finish_reason) for part in last.outputs] == [
        (0, "", "abort"),
        (1, "", "abort"),
    ]
    assert front.aborted == ["a"]
    assert front.dispatcher.num_in_flight == 0


def test_a_raising_callback_harms_nobody(front, caplog):
    calls = []

    def callback(output):
        calls.append(output)
        raise ValueError("a caller's fault")

    front.add("bad", callback)
    front.add("good")
    front.step(delta("A", request_id="bad"), delta("A", request_id="good"))
    front.step(delta(EOS_ID, request_id="bad", end="stop"), delta(EOS_ID, request_id="good", end="stop"))
    front.end()
    assert len(calls) == 2
    assert front.whole("good").outputs[0].text == "A"
    assert "a caller's fault" in caplog.text
    assert front.dispatcher.num_in_flight == 0


def test_an_output_that_cannot_be_decoded_fails_alone(front, monkeypatch, caplog):
    front.add("bad")
    front.add("good")
    monkeypatch.setattr(front.dispatcher._in_flight["bad"].streams[0], "_detokenizer", None)
    front.step(delta("A", request_id="bad"), delta("A", request_id="good"))
    front.step(delta("B", request_id="bad"), delta(EOS_ID, request_id="good", end="stop"))
    front.end()
    [failed] = front.outputs["bad"]
    assert (failed.finished, failed.error_kind, failed.outputs[0].finish_reason) == (True, "request_failed", "error")
    assert front.whole("good").outputs[0].text == "A"
    assert front.aborted == ["bad"]


def test_a_cancel_during_the_last_step_still_tells_every_end(front):
    front.add("a", n=2)
    front.add("b", callback=lambda output: front.dispatcher.cancel("a"))
    front.step(delta(EOS_ID, request_id="b", end="stop"), delta("A", end="length"), delta("A", end="length", index=1))
    front.end()
    [last] = front.outputs["a"]
    assert last.finished
    assert [(part.index, part.finish_reason) for part in last.outputs] == [(0, "abort"), (1, "abort")]


def test_closing_ends_what_is_left(front):
    front.add("a")
    front.add("b", callback=lambda output: front.dispatcher.close())
    front.step(delta(EOS_ID, request_id="b", end="stop"))
    front.end()
    assert [(output.finished, output.outputs[0].finish_reason) for output in front.outputs["a"]] == [(True, "abort")]
    with pytest.raises(EngineDead):
        front.add("c")


def test_the_same_request_twice_is_refused(front):
    front.add("a")
    with pytest.raises(InvalidRequest):
        front.add("a")


def test_a_failed_request_says_why(front):
    front.add()
    front.step(delta("A"))
    front.step(delta(end="error", error="it broke", error_kind="request_failed"))
    front.end()
    assert front.outputs["a"][0].error is None
    assert (front.outputs["a"][1].error, front.outputs["a"][1].error_kind) == ("it broke", "request_failed")
    assert front.outputs["a"][1].outputs[0].finish_reason == "error"


def test_a_dead_engine_ends_everything(front):
    front.add("a", n=2)
    front.add("b")
    front.step(delta(EOS_ID, end="stop"))
    front.events.put(EngineFailed("the process is gone", "engine_dead"))
    front.events.put(EngineFailed("said twice", "engine_dead"))
    front.end()
    for request_id, indices in (("a", [1]), ("b", [0])):
        last = front.outputs[request_id][-1]
        assert (last.finished, last.error, last.error_kind) == (True, "the process is gone", "engine_dead")
        assert [part.index for part in last.outputs] == indices
    assert [failure.message for failure in front.failures] == ["the process is gone"]
    with pytest.raises(EngineDead, match="the process is gone"):
        front.add("c")


def test_waiting_for_idle(front):
    assert front.dispatcher.wait_until_idle(0.0)
    front.add()
    assert not front.dispatcher.wait_until_idle(0.0)
    timer = threading.Timer(0.05, lambda: front.step(delta(EOS_ID, end="stop")))
    timer.start()
    assert front.dispatcher.wait_until_idle(30.0)
    assert front.outputs["a"][-1].finished, "idle means that the last callback has returned"
    timer.join()


def test_timings(tokenizer):
    front = Front(tokenizer)
    readings = iter(range(10, 100))
    front.dispatcher._clock = lambda: float(next(readings))
    front.add()
    front.step(delta("A", first_scheduled_time_s=5.0))
    front.step(delta("B"))
    front.step(delta(EOS_ID, end="stop"))
    front.end()
    timings = front.outputs["a"][-1].timings
    assert (timings.arrival_s, timings.first_scheduled_s) == (1.0, 5.0)
    assert (timings.first_token_s, timings.last_token_s, timings.finished_s) == (10.0, 12.0, 13.0)


def test_small_steps_are_handled_on_the_calling_thread_and_in_order(tokenizer):
    front = Front(tokenizer)
    called: list[tuple[int, bool]] = []
    may_go_on = threading.Event()

    def on_output(output: RequestOutput) -> None:
        token_ids = output.outputs[0].token_ids
        called.append((token_ids[0], threading.current_thread() is threading.main_thread()))
        if token_ids[0] == 2:
            may_go_on.wait(10)

    front.add("a", on_output, max_tokens=9)
    for other in range(MAX_DIRECT_DELTAS):
        front.add(f"other {other}")
    others = [SequenceDelta(f"other {other}", 0, [1]) for other in range(MAX_DIRECT_DELTAS)]
    stats = EngineStats()
    front.dispatcher.receive(StepOutputs([SequenceDelta("a", 0, [1])], stats))
    assert called == [(1, True)]
    front.dispatcher.receive(StepOutputs([SequenceDelta("a", 0, [2]), *others], stats))
    front.dispatcher.receive(StepOutputs([SequenceDelta("a", 0, [3])], stats))  # waits behind the large step
    may_go_on.set()
    front.dispatcher.receive(StepOutputs([SequenceDelta("a", 0, [4], "length")], stats))
    front.end()
    assert [token_id for token_id, _ in called] == [1, 2, 3, 4]
    assert [is_here for _, is_here in called[:3]] == [True, False, False]
