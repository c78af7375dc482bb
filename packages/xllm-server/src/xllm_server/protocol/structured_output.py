"""The fields by which a request asks for a form of its answer: OpenAI's, and those of other servers. Knows no grammars."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from xllm_framework.constraint import Constraint, ConstraintKind
from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.engine_request import EngineRequest


class JsonSchemaFormat(msgspec.Struct):
    """The schema of a `ResponseFormat`."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Accepted; an answer always follows the schema."""


class ResponseFormat(msgspec.Struct):
    """OpenAI's way to ask for a form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's way: exactly one of these."""

    json: dict[str, Any] | str | None = None
    """A JSON Schema."""
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """Lark, or GBNF as llama.cpp has it."""


class StructuredOutputFields(EngineRequest, kw_only=True):
    """Fields of every request that may ask for a form; at most one of them is given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    """An older name of structured_outputs.json; so are the next ones."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def constraint(self) -> Constraint | None:
        """Return the form that is asked for; None for free text.

        Raises:
            InvalidRequest: there are several, or one lacks its schema; `param` names the field.
        """
        found = [
            part for part in (self._of_response_format(), *self._of_structured_outputs(), *self._of_guided()) if part
        ]
        if len(found) > 1:
            raise InvalidRequest(f"{found[0].param} and {found[1].param} exclude each other.", found[1].param)
        return found[0] if found else None

    def _of_response_format(self) -> Constraint | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return Constraint("json_object")
        if wanted.json_schema is None:
            raise InvalidRequest(
                "response_format of type json_schema needs json_schema.", "response_format.json_schema"
            )
        return _constraint("json_schema", wanted.json_schema.schema, "response_format")

    def _of_structured_outputs(self) -> list[Constraint | None]:
        wanted, param = self.structured_outputs, "structured_outputs"
        if wanted is None:
            return []
        return [
            _constraint("json_schema", wanted.json, f"{param}.json"),
            Constraint("json_object", param=f"{param}.json_object") if wanted.json_object else None,
            _constraint("regex", wanted.regex, f"{param}.regex"),
            _constraint("choice", wanted.choice, f"{param}.choice"),
            _constraint("grammar", wanted.grammar, f"{param}.grammar"),
        ]

    def _of_guided(self) -> list[Constraint | None]:
        return [
            _constraint("json_schema", self.guided_json, "guided_json"),
            _constraint("regex", self.guided_regex, "guided_regex"),
            _constraint("choice", self.guided_choice, "guided_choice"),
            _constraint("grammar", self.guided_grammar, "guided_grammar"),
        ]


def _constraint(kind: ConstraintKind, content: Any, param: str) -> Constraint | None:
    if content is None:
        return None
    try:
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
    except orjson.JSONEncodeError:
        raise InvalidRequest(f"{param} is nested too deeply.", param) from None
    return Constraint(kind, text, param)
