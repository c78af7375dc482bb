"""A failed step, computed again one sequence at a time: who failed, and what the others got."""

from __future__ import annotations

import numpy as np
import pytest

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.errors import EngineDead, XLLMError
from xllm_framework.request import Request, SamplingParams
from xllm_runtime.master.isolation import execute_one_by_one


class NamedEngine:
    """Answers by the request's name: one that begins with bad raises, one with a number wants so many alternatives."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def execute(self, group: BatchGroup) -> list[ForwardOutput]:
        return [self._one(batch) for batch in group.batches]

    def close(self) -> None:
        pass

    def _one(self, batch: Batch) -> ForwardOutput:
        if len(batch) == 0:
            return ForwardOutput(np.empty(0, np.int32))
        [item] = batch.scheduled
        name = item.request.request_id
        if name.startswith("bad"):
            raise self.error
        if not item.is_sampled:
            chunk = (np.array([-1.0], np.float32), np.array([[9]], np.int32), np.array([[-2.0]], np.float32))
            return ForwardOutput(np.empty(0, np.int32), prompt_logprobs={0: chunk})
        if name == "nan":
            return ForwardOutput(np.array([-1], np.int32), errors={0: "not finite"})
        output = ForwardOutput(np.array([ord(name[0])], np.int32))
        if name[-1].isdigit():
            width = int(name[-1])
            output.logprobs = np.array([-0.5], np.float32)
            output.top_ids = np.full((1, width), width, np.int32)
            output.top_logprobs = np.full((1, width), -0.25, np.float32)
        return output


def group(*names: str) -> BatchGroup:
    batch = Batch()
    for name in names:
        request = Request(name, [1, 2, 3], SamplingParams(), arrival_time_s=0.0)
        batch.add(ScheduledSequence(request, request.sequences[0], 0, 1 if name.startswith("chunk") else 3))
    return BatchGroup((batch, Batch()))


def test_the_others_get_what_one_pass_would_have_given_them():
    isolated = execute_one_by_one(NamedEngine(ValueError("no")), group("x", "bad1", "a1", "chunk", "nan", "bad2", "b3"))
    assert isolated.failures == {"bad1": "ValueError: no", "bad2": "ValueError: no"}
    first, idle = isolated.group.batches
    assert [item.request.request_id for item in first] == ["x", "a1", "chunk", "nan", "b3"]
    assert len(idle) == 0
    output = isolated.outputs[0]
    assert output.token_ids.tolist() == [ord("x"), ord("a"), -1, ord("b")]
    assert output.errors == {2: "not finite"}
    assert output.logprobs.tolist() == [0.0, -0.5, 0.0, -0.5]
    assert output.top_ids.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [3, 3, 3]]
    assert output.top_logprobs[3].tolist() == [-0.25] * 3
    assert list(output.prompt_logprobs) == [2], "the chunk's place among the scheduled sequences"
    assert isolated.outputs[1].token_ids.tolist() == []


def test_our_own_errors_keep_their_words():
    assert execute_one_by_one(NamedEngine(XLLMError("as it is")), group("bad")).failures == {"bad": "as it is"}


def test_a_dead_engine_is_nobodys_fault():
    with pytest.raises(EngineDead):
        execute_one_by_one(NamedEngine(EngineDead("gone")), group("x", "bad"))
