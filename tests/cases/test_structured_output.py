"""Section 2.6 of the public cases: structured output. Each test is named after its row."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from xllm_script_model.script import script

from support.server_process import ServerProcess
from support.shared_servers import tool_server

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}},
    "required": ["value"],
}
SELF_REFERRING = {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}
TREE = {"$ref": "#/$defs/n", "$defs": {"n": NODE | {"additionalProperties": False}}}
EMPTY_OBJECT = {"type": "object", "additionalProperties": False}


def response_format(schema: Any) -> dict[str, Any]:
    """Return the `response_format` of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def refused_param(answer: Any) -> str:
    """Return the field that a refusal names."""
    assert answer.status_code == 400, answer.text
    param: str = answer.json()["error"]["param"]
    return param


def text_of(answer: Any) -> tuple[str, str]:
    """Return text and finish reason of a chat answer."""
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def chat(server: ServerProcess, *tokens: Any, **fields: Any) -> Any:
    """Post a chat whose script wants `tokens`; greedy."""
    return server.chat(script(*tokens), temperature=0, max_tokens=200, **fields)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_b56_a_schema_that_refers_to_itself(server: ServerProcess, is_streamed: bool) -> None:
    answer = chat(server, "x", response_format=response_format(SELF_REFERRING), stream=is_streamed)
    assert refused_param(answer) == "response_format"


def test_b56_a_tree(server: ServerProcess) -> None:
    wanted = '{"value": 1,\n "next": {"value": 23}}'
    text, reason = text_of(chat(server, wanted, response_format=response_format(TREE)))
    assert (text, reason) == (wanted, "stop")
    jsonschema.validate(json.loads(text), TREE)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "(" * 60_000 + "a" + ")" * 60_000}},
        {"structured_outputs": {"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000}},
        {"structured_outputs": {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}},
        {"structured_outputs": {"grammar": "start: A\nA: /.*a.{20}b.*/ & /.*b.{20}a.*/ & ~/.*c.{30}d.*/"}},
        {"structured_outputs": {"choice": [f"alternative {index}" for index in range(2**16)]}},
        {"response_format": response_format({"anyOf": [{"const": index} for index in range(2**16)]})},
        {"response_format": response_format({"enum": list(range(2**16))})},
        {"response_format": response_format(_nested(200))},
        {"response_format": response_format({"type": "object", "properties": {f"p{i}": {} for i in range(5000)}})},
    ],
)
def test_b58_hostile_forms(server: ServerProcess, fields: dict[str, Any]) -> None:
    assert refused_param(chat(server, "x", **fields)).startswith(next(iter(fields)))
    assert text_of(chat(server, "fine")) == ("fine", "stop")


def test_b58_a_schema_1000_levels_deep(server: ServerProcess) -> None:
    schema = '{"items":' * 1000 + "{}" + "}" * 1000
    format_ = '{"type": "json_schema", "json_schema": {"schema": ' + schema + "}}"
    body = '{"messages": [{"role": "user", "content": "x"}], "response_format": ' + format_ + "}"
    answer = server.post("/v1/chat/completions", body.encode())
    assert answer.status_code == 400


def test_b60_white_space_is_bounded(server: ServerProcess) -> None:
    text, reason = text_of(chat(server, "{", *[" "] * 150, response_format={"type": "json_object"}))
    assert text.startswith("{")
    assert len(text[1:]) - len(text[1:].lstrip()) <= 2
    assert reason == "length"


def test_b60_white_space_has_nowhere_to_go(server: ServerProcess) -> None:
    text, reason = text_of(chat(server, "{", *[" "] * 150, response_format=response_format(EMPTY_OBJECT)))
    assert (json.loads(text), reason) == ({}, "stop")


def test_b60_endless_digits_end_by_length(server: ServerProcess) -> None:
    text, reason = text_of(chat(server, *["7"] * 300, response_format=response_format({"type": "integer"})))
    assert (text, reason) == ("7" * 200, "length")


@pytest.mark.parametrize(
    ("format_", "param"),
    [
        ({"type": "xml"}, "response_format.type"),
        ("json", "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        (response_format({"type": "xml"}), "response_format"),
        (response_format({"type": "array", "uniqueItems": True}), "response_format"),
        (response_format({"not": {"type": "string"}}), "response_format"),
        (response_format({"if": {}, "then": {}}), "response_format"),
        (response_format({"type": "string", "format": "no such format"}), "response_format"),
        (response_format({"properties": {"a": {"tpye": "string"}}}), "response_format"),
        (response_format({"$ref": "https://example.com/schema.json"}), "response_format"),
        (response_format({"type": "object", "x-guidance": {"lenient": True}}), "response_format"),
        (response_format({"enum": []}), "response_format"),
    ],
)
def test_b62_what_is_not_enforced_is_refused(server: ServerProcess, format_: Any, param: str) -> None:
    assert refused_param(chat(server, "x", response_format=format_)) == param


def test_b62_text_works(server: ServerProcess) -> None:
    assert text_of(chat(server, "free", response_format={"type": "text"})) == ("free", "stop")


def test_b62_pattern_properties_are_enforced(server: ServerProcess) -> None:
    schema = {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False}
    text, _ = text_of(chat(server, '{"n_a": "oops"', response_format=response_format(schema)))
    assert text.startswith('{"n_a": ')
    assert '"oops' not in text


@pytest.mark.parametrize(
    ("fields", "wanted", "text"),
    [
        ({"guided_choice": ["yes", "no"]}, "nonsense", "no"),
        ({"guided_regex": "[0-9]{3}"}, "12345", "123"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "b" root'}}, "bbax", "bba"),
        ({"structured_outputs": {"json": {"const": [1, 2]}}}, "[1,2]3", "[1,2]"),
        ({"structured_outputs": {"json_object": True}}, '{"a":1}...', '{"a":1}'),
    ],
)
@pytest.mark.parametrize("is_chat", [True, False])
def test_the_fields_of_other_servers(
    server: ServerProcess, fields: dict[str, Any], wanted: str, text: str, is_chat: bool
) -> None:
    if is_chat:
        assert text_of(chat(server, wanted, **fields)) == (text, "stop")
        return
    choice = server.complete(script(wanted), temperature=0, max_tokens=200, **fields).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def test_thinking_is_free_and_the_answer_is_not() -> None:
    server = tool_server("hermes")
    answer = chat(server, "<think>", "hm {", "</think>", "maybe", guided_choice=["yes", "no"])
    text, reason = text_of(answer)
    assert (text, reason) in {("yes", "stop"), ("no", "stop")}
