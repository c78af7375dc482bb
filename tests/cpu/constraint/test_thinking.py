"""A constraint begins after the model's thinking, and thinking cannot end the answer."""

from __future__ import annotations

import msgspec
import pytest

from support.constrained_walks import allowed_ids, compiler_of, tiny_tokenizer
from support.tool_prompts import tool
from xllm_framework.constraint import Constraint, ReasoningTags
from xllm_framework.constraint.structure import structure_constraint, structure_of
from xllm_server.parsers.reasoning.interface import ReasoningStart
from xllm_server.parsers.reasoning.registry import REASONING_PARSERS
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

TOKENIZER = tiny_tokenizer()
COMPILER = compiler_of(TOKENIZER)
[EOS] = TOKENIZER.eos_token_ids


def state_of(*, is_open: bool):
    """Return the state of an answer that is yes or no, perhaps after thinking."""
    tags = ReasoningTags("<think>", "</think>", is_open)
    return COMPILER.compile(Constraint("choice", '["yes", "no"]', reasoning=tags)).new_state()


def feed(state, text: str) -> None:
    """Accept the bytes of `text`, each of which must be allowed."""
    for byte in text.encode():
        assert byte in allowed_ids(state, TOKENIZER.vocab_size), text
        state.accept(byte)


@pytest.mark.parametrize("is_open", [True, False])
def test_the_answer_after_thinking(is_open: bool) -> None:
    state = state_of(is_open=is_open)
    feed(state, ("" if is_open else "<think>") + "yes { no </thin </think>")
    assert EOS not in allowed_ids(state, TOKENIZER.vocab_size)
    feed(state, "no")
    assert state.is_complete


def test_an_answer_without_thinking() -> None:
    state = state_of(is_open=False)
    assert allowed_ids(state, TOKENIZER.vocab_size) == {ord("y"), ord("n"), ord("<")}
    feed(state, "yes")
    assert state.is_complete


def test_thinking_cannot_end_the_answer() -> None:
    state = state_of(is_open=True)
    feed(state, "so")
    assert EOS not in allowed_ids(state, TOKENIZER.vocab_size)
    assert not state.is_complete


def test_what_begins_like_a_tag_and_is_none() -> None:
    tags = ReasoningTags("<think>", "</think>", False)
    state = COMPILER.compile(Constraint("regex", "<thin!", reasoning=tags)).new_state()
    feed(state, "<thin!")
    assert state.is_complete


@pytest.mark.parametrize(
    ("prompt", "reasoning"),
    [
        ("hello", ReasoningTags("<think>", "</think>", False)),
        ("hello<think>\n", ReasoningTags("<think>", "</think>", True)),
        ("hello<think>\n\n</think>\n\n", None),
    ],
)
def test_the_end_of_the_prompt_decides(prompt: str, reasoning: ReasoningTags | None) -> None:
    constraint = Constraint("json_object", reasoning=ReasoningTags("<think>", "</think>", False))
    assert constraint.after(prompt).reasoning == reasoning


def forced_text(state) -> str:
    """Accept what is forced until there is a choice; return it."""
    text = b""
    while len(allowed := allowed_ids(state, TOKENIZER.vocab_size)) == 1:
        [token_id] = allowed
        state.accept(token_id)
        text += TOKENIZER.token_bytes(token_id)
    return text.decode()


@pytest.mark.parametrize(("is_open", "budget"), [(True, 3), (True, 0), (False, 2), (False, 0)])
def test_a_budget_ends_the_thinking(is_open: bool, budget: int) -> None:
    tags = ReasoningTags("<think>", "</think>", is_open, max_tokens=budget, forced_close="\n</think>\n\n")
    state = COMPILER.compile(Constraint("regex", "[yn][oe]", reasoning=tags)).new_state()
    feed(state, "" if is_open else "<think>")
    feed(state, "abcdef"[:budget])
    assert EOS not in allowed_ids(state, TOKENIZER.vocab_size)
    assert forced_text(state.copy()) == "\n</think>\n\n"
    assert forced_text(state) == "\n</think>\n\n"
    feed(state, "no")
    assert state.is_complete


def test_a_thinking_that_ends_in_time_is_left_alone() -> None:
    tags = ReasoningTags("<think>", "</think>", True, max_tokens=50, forced_close="</think>")
    state = COMPILER.compile(Constraint("free", reasoning=tags)).new_state()
    feed(state, "short</think>")
    assert len(allowed_ids(state, TOKENIZER.vocab_size)) == TOKENIZER.vocab_size
    assert not state.is_complete
    state.accept(EOS)
    assert state.error is None


def test_a_budget_is_of_no_consequence_behind_a_closed_thinking() -> None:
    tags = ReasoningTags("<think>", "</think>", False, max_tokens=5)
    assert Constraint("free", reasoning=tags).after("<think>\n\n</think>\n\n") is None


HARMONY = tiny_tokenizer(["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"])


def harmony_state(structure, budget: int | None = None):
    """Return the state of an answer of gpt-oss."""
    tags = REASONING_PARSERS.load("harmony").tags(ReasoningStart(), calls_end_it=False)
    tags = msgspec.structs.replace(tags, max_tokens=budget)
    constraint = msgspec.structs.replace(structure_constraint(structure, "x"), reasoning=tags)
    return compiler_of(HARMONY).compile(constraint).new_state()


def feed_harmony(state, text: str) -> None:
    """Accept the tokens of `text`, each of which must be allowed."""
    for token_id in HARMONY.encode(text, add_special_tokens=False):
        assert token_id in allowed_ids(state, HARMONY.vocab_size), HARMONY.token_bytes(token_id)
        state.accept(token_id)


@pytest.mark.parametrize("thought", ["", "<|channel|>analysis<|message|>free { text<|end|><|start|>assistant"])
def test_a_form_binds_only_the_final_channel_of_harmony(thought: str) -> None:
    answer = REASONING_PARSERS.load("harmony").answer(structure_of(Constraint("choice", '["yes", "no"]')))
    state = harmony_state(answer)
    feed_harmony(state, f"{thought}<|channel|>final<|message|>")
    assert allowed_ids(state, HARMONY.vocab_size) == {ord("y"), ord("n")}
    feed_harmony(state, "yes")
    assert state.is_complete


def test_a_budget_ends_the_analysis_of_harmony() -> None:
    answer = REASONING_PARSERS.load("harmony").answer(structure_of(Constraint("choice", '["yes", "no"]')))
    state = harmony_state(answer, budget=3)
    feed_harmony(state, "<|channel|>analysis<|message|>abc")
    end, start = (HARMONY.encode(mark, add_special_tokens=False)[0] for mark in ("<|end|>", "<|start|>"))
    assert allowed_ids(state, HARMONY.vocab_size) == {end}
    state.accept(end)
    assert start in allowed_ids(state, HARMONY.vocab_size)
    feed_harmony(state, "<|start|>assistant<|channel|>final<|message|>no")
    assert state.is_complete


def test_a_call_may_end_the_thinking_of_kimi() -> None:
    marks = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"]
    tokenizer = tiny_tokenizer(marks)
    tags = REASONING_PARSERS.load("kimi-k2").tags(ReasoningStart(), calls_end_it=True)
    forced = TOOL_CALL_PARSERS.load("kimi-k2").forced_calls([tool("now")], 1)
    constraint = msgspec.structs.replace(structure_constraint(forced, "tools"), reasoning=tags)
    state = compiler_of(tokenizer).compile(constraint).new_state()
    text = "<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}"
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        assert token_id in allowed_ids(state, tokenizer.vocab_size)
        state.accept(token_id)
    assert state.error is None
