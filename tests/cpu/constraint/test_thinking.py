"""A constraint begins after the model's thinking, and thinking cannot end the answer."""

from __future__ import annotations

import pytest

from support.constrained_walks import allowed_ids, compiler_of, tiny_tokenizer
from xllm_framework.constraint import Constraint, ReasoningTags

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
