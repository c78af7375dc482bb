"""Calls that a grammar forces are read back by the parser, name and arguments, whatever the model would rather write."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from support.constrained_walks import RandomWriter, allowed_ids, compiler_of, tiny_tokenizer
from support.parser_driving import Answer, parse_calls
from support.tool_prompts import TOOL_PROMPTS, tool
from xllm_framework.constraint.structure import structure_constraint
from xllm_framework.errors import InvalidRequest
from xllm_server.parsers.tool_call.registry import TOOL_CALL_PARSERS

FORMATS = [name for name in TOOL_CALL_PARSERS.names if TOOL_CALL_PARSERS.resolve(name) == name]
MARKS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "｜DSML｜",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
    ),
    *(
        "<|start|>",
        "<|end|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    ),
    *("<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|python_tag|>"),
]
"""Special tokens of the models that have these formats."""
TOKENIZERS = {"marks": tiny_tokenizer(MARKS), "bytes": tiny_tokenizer()}
COMPILERS = {name: compiler_of(tokenizer) for name, tokenizer in TOKENIZERS.items()}
CLOSING = {"qwen3-coder": "</parameter>", "glm45": "</arg_value>", "deepseek-v32": "</｜DSML｜parameter>"}
LIMIT = 1500


def written(name: str, kind: str, structure: Any, seed: int) -> str | None:
    """Return what a model without sense writes under `structure`, in the format `name`."""
    state = compile_for(kind, structure).new_state()
    ends = ('"', "}", "]", ",", ")", "\n")
    return RandomWriter(TOKENIZERS[kind], seed, ends, CLOSING.get(name, "")).write(state, LIMIT)


def check_call(tools: list[dict[str, Any]], name: str, arguments: str) -> None:
    """Check that there is such a tool, and that its schema takes the arguments."""
    [schema] = [tool["function"].get("parameters") for tool in tools if tool["function"]["name"] == name]
    values = json.loads(arguments)
    assert isinstance(values, dict)
    jsonschema.validate(values, schema or {"type": "object", "maxProperties": 0})


SEVERAL = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}',
    "llama3-json": '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}; {"name": "now"',
    "mistral": '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "K',
    "pythonic": '[now(), get_weather(city="Bonn"), now()]',
    "qwen3-coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>",
}


def compile_for(kind: str, structure: Any) -> Any:
    """Return the grammar of `structure`."""
    return COMPILERS[kind].compile(structure_constraint(structure, "tools"))


def sent_back(name: str, structure: Any, tools: list[dict[str, Any]], seed: int) -> Answer:
    """Return what the parser makes of a text under `structure`; cut or whole, that is the same."""
    text = written(name, "marks" if seed % 2 else "bytes", structure, seed)
    assert text is not None
    answer = parse_calls(name, [text], tools)
    assert parse_calls(name, text, tools) == answer
    for call in answer.calls:
        check_call(tools, *call)
    return answer


@pytest.mark.parametrize("name", FORMATS)
def test_thirty_prompts_are_answered_by_valid_calls(name: str) -> None:
    factory = TOOL_CALL_PARSERS.load(name)
    for seed, (_, tools) in enumerate(TOOL_PROMPTS):
        answer = sent_back(name, factory.forced_calls(tools, 1), tools, seed)
        assert answer.content == ""
        assert len(answer.calls) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_several_calls_may_be_forced(name: str) -> None:
    tools = [tool("get_weather", {"city": {"enum": ["Bonn", "Köln"]}}), tool("now")]
    forced = TOOL_CALL_PARSERS.load(name).forced_calls(tools, 3)
    counts = [len(sent_back(name, forced, tools, seed).calls) for seed in range(8)]
    assert set(counts) <= ({1} if name == "harmony" else {1, 2, 3})
    several = compile_for("bytes", forced)
    if name in SEVERAL:
        follow("bytes", several.new_state(), SEVERAL[name])


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_in_free_text_follows_the_schema(name: str) -> None:
    tools = [tool("get_weather", {"city": {"enum": ["Bonn", "Köln"]}}), tool("now")]
    kind = "marks" if name == "harmony" else "bytes"
    grammar = compile_for(kind, TOOL_CALL_PARSERS.load(name).free_calls(tools, None))
    assert follow(kind, grammar.new_state(), BEGINNINGS[name]) == {"g", "n"}
    follow(kind, grammar.new_state(), PROSE.get(name, "Any text { at [ all. "))


BEGINNINGS = {
    "deepseek-v3": "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "deepseek-v31": "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "deepseek-v32": 'Ok.<｜DSML｜function_calls>\n<｜DSML｜invoke name="',
    "glm45": "Ok.<tool_call>",
    "harmony": "<|channel|>commentary<|message|>Ok.<|end|><|start|>assistant<|channel|>commentary to=functions.",
    "hermes": 'Ok.<tool_call>\n{"name": "',
    "kimi-k2": "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    "llama3-json": '{"name": "',
    "mistral": 'Ok.[TOOL_CALLS][{"name": "',
    "pythonic": "[",
    "qwen3-coder": "Ok.<tool_call>\n<function=",
}
PROSE = {"harmony": "<|channel|>final<|message|>Any text { at [ all. "}


def follow(kind: str, state: Any, text: str) -> set[str]:
    """Accept `text`, which must be allowed, and return the single characters that may follow."""
    tokenizer = TOKENIZERS[kind]
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        assert token_id in allowed_ids(state, tokenizer.vocab_size), tokenizer.token_bytes(token_id)
        state.accept(token_id)
        assert state.error is None
    return {chr(token_id) for token_id in allowed_ids(state, tokenizer.vocab_size) if token_id < 128}


def test_a_strict_schema_is_refused_where_it_cannot_be_enforced() -> None:
    loose = tool("f", {"x": {"not": {"type": "string"}}})
    strict = {"type": "function", "function": loose["function"] | {"strict": True}}
    factory = TOOL_CALL_PARSERS.load("hermes")
    assert written("hermes", "bytes", factory.forced_calls([loose], 1), 0)
    with pytest.raises(InvalidRequest, match="'not'") as failure:
        written("hermes", "bytes", factory.forced_calls([strict], 1), 0)
    assert failure.value.param == "tools.f"
