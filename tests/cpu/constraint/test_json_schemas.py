"""Whatever a model's logits, what it writes under a schema is JSON that satisfies the schema."""

from __future__ import annotations

import json

import jsonschema
import pytest

from support.constrained_walks import RandomWriter, compiler_of, schema_constraint, tiny_tokenizer
from support.json_schemas import SCHEMAS
from xllm_framework.config import LoadConfig
from xllm_framework.model.source import resolve_model
from xllm_framework.tokenizer import Tokenizer, load_tokenizer
from xllm_runtime.constraint import GrammarCompiler

TINY = tiny_tokenizer()
TINY_COMPILER = compiler_of(TINY)
NUM_WALKS = 4


@pytest.fixture(scope="module")
def demo() -> tuple[Tokenizer, GrammarCompiler]:
    """Return the demo model's tokenizer and a compiler for it; its weights are not looked at."""
    tokenizer = load_tokenizer(resolve_model("", LoadConfig()))
    return tokenizer, compiler_of(tokenizer)


def _validate(text: str | None, schema: dict) -> bool:
    if text is None:
        return False
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    return True


def test_there_are_forty_schemas() -> None:
    assert len(SCHEMAS) == 40


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_random_logits_on_a_tiny_vocabulary(index: int) -> None:
    grammar = TINY_COMPILER.compile(schema_constraint(SCHEMAS[index]))
    ended = [
        _validate(RandomWriter(TINY, 100 * index + seed).write(grammar.new_state()), SCHEMAS[index])
        for seed in range(NUM_WALKS)
    ]
    assert any(ended)


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_random_logits_on_a_real_vocabulary(index: int, demo: tuple[Tokenizer, GrammarCompiler]) -> None:
    tokenizer, compiler = demo
    state = compiler.compile(schema_constraint(SCHEMAS[index])).new_state()
    assert _validate(RandomWriter(tokenizer, index).write(state), SCHEMAS[index])
