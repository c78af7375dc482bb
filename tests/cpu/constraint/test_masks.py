"""Masks allow what the grammar allows, for each row alone, and both samplers obey them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from support.constrained_walks import RandomWriter, allowed_ids, compiler_of, tiny_tokenizer
from support.sampling_rows import Row, sampling_rows
from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_framework.constraint import Constraint
from xllm_framework.errors import InvalidRequest
from xllm_runtime.constraint import ConstraintChecker
from xllm_runtime.sampling.arrays.sampler import sample as sample_arrays
from xllm_runtime.sampling.sampler import sample as sample_tensors

TOKENIZER = tiny_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size + 7
"""Models have more logits than their tokenizers have tokens."""
COMPILER = compiler_of(TOKENIZER, VOCAB_SIZE)
[EOS] = TOKENIZER.eos_token_ids


def state_after(constraint: Constraint, text: bytes):
    """Return the state after the bytes of `text`, one token each."""
    state = COMPILER.compile(constraint).new_state()
    for byte in text:
        state.accept(byte)
    return state


def test_a_text_may_end_exactly_where_it_is_whole() -> None:
    constraint = Constraint("regex", "ab+")
    assert allowed_ids(state_after(constraint, b"a"), VOCAB_SIZE) == {ord("b")}
    whole = state_after(constraint, b"ab")
    assert allowed_ids(whole, VOCAB_SIZE) == {ord("b"), EOS}
    assert not whole.is_complete
    assert state_after(Constraint("regex", "ab"), b"ab").is_complete


def test_special_tokens_and_padding_are_never_text() -> None:
    free_string = state_after(Constraint("json_schema", '{"type": "string"}'), b'"')
    allowed = allowed_ids(free_string, VOCAB_SIZE)
    assert ord("x") in allowed
    assert not {token_id for token_id in allowed if token_id >= TOKENIZER.vocab_size or TOKENIZER.is_special(token_id)}


def test_a_token_that_may_not_follow_is_an_error_for_good() -> None:
    state = state_after(Constraint("regex", "ab"), b"x")
    assert state.error is not None
    assert allowed_ids(state, VOCAB_SIZE) == set()


def test_a_copy_goes_its_own_way() -> None:
    state = state_after(Constraint("regex", "(ab|cd)"), b"")
    copied = state.copy()
    state.accept(ord("a"))
    copied.accept(ord("c"))
    assert allowed_ids(state, VOCAB_SIZE) == {ord("b")}
    assert allowed_ids(copied, VOCAB_SIZE) == {ord("d")}


@pytest.mark.parametrize("seed", range(5))
def test_choices(seed: int) -> None:
    choices = ["yes", "no", 'qu"ote\\', "größe\n", "yes please"]
    constraint = Constraint("choice", json.dumps(choices))
    assert RandomWriter(TOKENIZER, seed).write(COMPILER.compile(constraint).new_state()) in choices


def test_masks_do_not_depend_on_the_batch() -> None:
    states = [
        state_after(Constraint("regex", "[0-9]+"), b"1"),
        state_after(Constraint("json_object"), b"{"),
        state_after(Constraint("choice", '["left", "right"]'), b"le"),
    ]
    together = AllowedTokens.of(list(enumerate(states)))
    for row, state in enumerate(states):
        assert np.array_equal(together.bits[row], AllowedTokens.of([(0, state)]).bits[0])


ROWS = [
    Row(),
    Row(temperature=0.9, seed=3, step=2),
    Row(bias=((65, 50.0),), logprobs=2),
    Row(temperature=0.7, top_p=0.9, top_k=20, seed=5),
    Row(banned=(EOS,)),
]
CONSTRAINED = {1: ("regex", "[0-9]+"), 2: ("choice", '["left", "right"]'), 3: ("json_object", ""), 4: ("regex", "b*")}


def _sampled(logits: np.ndarray, rows: list[int], sampler: str) -> list[int]:
    batch = sampling_rows([ROWS[row] for row in rows])
    states = [
        (place, COMPILER.compile(Constraint(*CONSTRAINED[row])).new_state())
        for place, row in enumerate(rows)
        if row in CONSTRAINED
    ]
    batch.allowed = AllowedTokens.of(states) if states else None
    part = logits[rows].copy()
    output = sample_arrays(part, batch) if sampler == "arrays" else sample_tensors(torch.from_numpy(part), batch)
    assert output.errors is None
    return output.token_ids.tolist()


@pytest.mark.parametrize("sampler", ["arrays", "tensors"])
@pytest.mark.parametrize("seed", range(5))
def test_both_samplers_obey_whoever_shares_the_batch(sampler: str, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(ROWS), VOCAB_SIZE)).astype(np.float32)
    tokens = _sampled(logits, list(range(len(ROWS))), sampler)
    assert tokens == [_sampled(logits, [row], sampler)[0] for row in range(len(ROWS))]
    assert tokens[0] == logits[0].argmax()
    assert chr(tokens[1]).isdigit() or TOKENIZER.token_bytes(tokens[1]) == b"12"
    assert tokens[2] in (ord("l"), ord("r"))
    assert TOKENIZER.token_bytes(tokens[3]).startswith(b"{")
    assert tokens[4] == ord("b")
    assert tokens == _sampled(logits, list(range(len(ROWS))), "arrays")


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "[a-"),
        Constraint("regex", "(?=a)b"),
        Constraint("regex", "x" * 20_000),
        Constraint("choice", "[]"),
        Constraint("choice", '["a", 1]'),
        Constraint("grammar", "start: start"),
        Constraint("grammar", "no grammar"),
        Constraint("grammar", "\n".join(["start: a0", *(f"a{i}: a{i + 1}" for i in range(300))])),
        Constraint("json_schema", "[]"),
        Constraint("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
        Constraint("json_schema", '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}'),
        Constraint("json_schema", "\ud800"),
    ],
)
def test_what_is_wrong_is_refused_by_name(constraint: Constraint) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ConstraintChecker().check(constraint)
    assert caught.value.param == "response_format"
    assert "response_format" in caught.value.message


def test_the_library_is_loaded_with_the_first_constraint() -> None:
    program = "import sys, xllm_runtime.master.llm; print({'llguidance', 'torch'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
