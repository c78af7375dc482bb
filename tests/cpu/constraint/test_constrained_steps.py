"""Constrained sequences in real steps: the same answers with overlap, preemption and neighbours; failures stay alone."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator

import pytest

from support.constrained_walks import compiler_of, tiny_tokenizer
from support.engine_side import EngineSide
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.config import LoadConfig, XLLMConfig
from xllm_framework.constraint import Constraint, Grammar
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import load_model_args
from xllm_framework.model.source import resolve_model
from xllm_framework.request import SamplingParams
from xllm_runtime.engine.llm import LLMEngine
from xllm_runtime.master import constrained_requests

NUMBER = Constraint("regex", r"[0-9]{3}-[a-f]{20}")
OBJECT = Constraint("json_object")
SAMPLINGS = {
    "number": SamplingParams(temperature=1.0, seed=1, n=3, constraint=NUMBER, max_tokens=60, logprobs=1),
    "object": SamplingParams(temperature=1.0, seed=2, constraint=OBJECT, max_tokens=30, min_tokens=4),
    "greedy": SamplingParams(temperature=0.0, constraint=NUMBER, max_tokens=60, ignore_eos=True),
    "free": SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True),
    "cut": SamplingParams(temperature=0.0, constraint=NUMBER, max_tokens=5),
}


@functools.cache
def engine() -> LLMEngine:
    folder = str(tiny_checkpoint("llama"))
    flat = {"model": folder, "device": "cpu", "dtype": "float32", "num_blocks": 200, "threads": 1}
    config = XLLMConfig.from_flat({**flat, "enable_schedule_overlap": True})
    return LLMEngine(config, resolve_model(folder, LoadConfig()), load_model_args(resolve_model(folder, LoadConfig())))


@pytest.fixture(scope="module", autouse=True)
def end_of_engine() -> Iterator[None]:
    """End the engine's thread, which would hold the decoder while the interpreter ends."""
    yield
    engine().close()
    for made_once in (answers, compiler, engine):
        made_once.cache_clear()


@functools.cache
def compiler():
    made = compiler_of(tiny_tokenizer(), engine().vocab_size)
    for sampling in SAMPLINGS.values():
        if sampling.constraint is not None:
            made.compile(sampling.constraint)
    return made


@functools.cache
def answers(
    names: tuple[str, ...] = tuple(SAMPLINGS), num_blocks: int = 150, *, is_overlapped: bool = False
) -> EngineSide:
    side = EngineSide(
        engine(), num_blocks, max_model_len=128, compiler=compiler(), enable_schedule_overlap=is_overlapped
    )
    for index, name in enumerate(SAMPLINGS):
        if name in names:
            side.add(name, [5 + index, *range(20)], SAMPLINGS[name])
    side.finish()
    assert side.holds_nothing
    return side


def test_answers_have_their_form() -> None:
    side = answers()
    for index in range(3):
        text = bytes(side.tokens["number", index]).decode()
        assert re.fullmatch(NUMBER.text, text)
        assert len(side.logprobs["number", index]) == len(text)
        assert side.reasons["number", index] == "stop"
    assert len({tuple(side.tokens["number", index]) for index in range(3)}) == 3
    assert tiny_tokenizer().join_bytes(side.tokens["object", 0], skip_special_tokens=False).startswith(b"{")
    assert (len(side.tokens["cut", 0]), side.reasons["cut", 0]) == (5, "length")
    assert (len(side.tokens["free", 0]), side.reasons["free", 0]) == (30, "length")


@pytest.mark.parametrize(("num_blocks", "is_overlapped"), [(150, True), (9, False), (9, True)])
def test_answers_are_equal_with_overlap_and_preemption(num_blocks: int, is_overlapped: bool) -> None:
    plain = answers()
    side = answers(num_blocks=num_blocks, is_overlapped=is_overlapped)
    assert (side.tokens, side.reasons) == (plain.tokens, plain.reasons)
    assert (side.stats.num_preemptions > 0) == (num_blocks == 9)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_answers_do_not_depend_on_neighbours(name: str) -> None:
    alone, together = answers((name,)), answers()
    assert alone.tokens == {key: ids for key, ids in together.tokens.items() if key[0] == name}


class SlowCompiler:
    """Finds nothing, and compiles when it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_go_on = threading.Event()
        self.error = error

    def find(self, constraint: Constraint) -> Grammar | None:
        return None

    def compile(self, constraint: Constraint) -> Grammar:
        self.may_go_on.wait(60)  # a test that failed before it said so must not keep the process
        if self.error is not None:
            raise self.error
        return compiler().compile(constraint)


def waiting_side(slow: SlowCompiler) -> EngineSide:
    """Return a side with two constrained requests that wait, and a free one that has run."""
    side = EngineSide(engine(), compiler=slow)
    for name in ("number", "greedy", "free"):
        side.add(name, [1, 2, 3], SAMPLINGS[name])
    side.finish()
    assert set(side.reasons) == {("free", 0)}
    return side


def test_a_request_that_waits_delays_nobody_and_runs_later() -> None:
    slow = SlowCompiler()
    side = waiting_side(slow)
    side.abort(("number", 1))
    slow.may_go_on.set()
    for _ in range(2):
        side.loop.apply(side.inbox.get())
    side.finish()
    assert [side.reasons["number", index] for index in range(3)] == ["stop", "abort", "stop"]
    assert side.reasons["greedy", 0] == "stop"
    assert side.holds_nothing


def test_a_request_that_waits_can_be_aborted() -> None:
    slow = SlowCompiler()
    side = waiting_side(slow)
    side.abort("number", "greedy", "unknown")
    slow.may_go_on.set()
    for _ in range(2):
        side.loop.apply(side.inbox.get())
    side.finish()
    assert {side.reasons[key] for key in side.reasons if key[0] != "free"} == {"abort"}


@pytest.mark.parametrize("error", [InvalidRequest("no", "x"), ZeroDivisionError("no")])
def test_a_grammar_that_fails_fails_its_request_alone(error: Exception) -> None:
    slow = SlowCompiler(error)
    side = waiting_side(slow)
    slow.may_go_on.set()
    for _ in range(2):
        side.loop.apply(side.inbox.get())
    kind = "invalid_request" if isinstance(error, InvalidRequest) else "request_failed"
    assert {side.errors["number", index][1] for index in range(3)} == {kind}
    assert not side.loop.has_work


def test_a_compiler_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained_requests, "COMPILE_TIMEOUT_S", 0.01)
    slow = SlowCompiler()
    side = EngineSide(engine(), compiler=slow)
    side.add("greedy", [1, 2, 3], SAMPLINGS["greedy"])
    side.loop.apply(side.inbox.get())
    assert side.errors["greedy", 0][1] == "invalid_request"
    slow.may_go_on.set()
    side.loop.apply(side.inbox.get())  # too late
    side.finish()
    assert side.reasons["greedy", 0] == "error"


def test_an_engine_without_a_compiler_refuses() -> None:
    side = EngineSide(engine())
    side.add("number", [1], SAMPLINGS["number"])
    side.loop.apply(side.inbox.get())
    assert side.errors["number", 2][1] == "invalid_request"
