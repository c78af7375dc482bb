"""From a constraint to the text that llguidance compiles. Knows nothing of tokens, except that structures name them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from llguidance import LLMatcher

from xllm_framework.constraint import Constraint
from xllm_framework.constraint.structure import read_structure
from xllm_framework.errors import InvalidRequest
from xllm_runtime.constraint.context_free import lark_grammar
from xllm_runtime.constraint.endless_schema import is_endless
from xllm_runtime.constraint.json_grammar import json_options
from xllm_runtime.constraint.json_schema import read_schema
from xllm_runtime.constraint.structure_grammar import MAX_REGEX_LENGTH, structure_grammar
from xllm_runtime.constraint.vocabulary import Vocabulary

MAX_CHOICES = 4096


def grammar_text(constraint: Constraint, vocabulary: Vocabulary) -> str:
    """Return llguidance's form of a constraint of any kind but free, in time linear in its text.

    Raises:
        InvalidRequest: the text is no schema, choice or grammar, or exceeds a limit; `param` is the constraint's.
    """
    text, param = constraint.text, constraint.param
    match constraint.kind:
        case "json_object":
            return _json_grammar({"type": "object"})
        case "json_schema":
            schema = read_schema(text, param)
            if is_endless(schema):
                raise InvalidRequest(f"{param}: no finite value satisfies the schema, which refers to itself.", param)
            return _json_grammar(schema)
        case "regex":
            if len(text) > MAX_REGEX_LENGTH:
                raise InvalidRequest(f"{param}: a regex has at most {MAX_REGEX_LENGTH} characters.", param)
            return str(LLMatcher.grammar_from_regex(text))
        case "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _choices(text, param))
            return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(lark_grammar(text, param)))
        case "structure":
            return structure_grammar(read_structure(text), vocabulary, param)
        case "free":
            raise InvalidRequest(f"{param} asks for no form.", param)


def _json_grammar(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=json_options()))


def _choices(text: str, param: str) -> list[str]:
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{param} must be a list of strings: {error}.", param) from None
    if not 0 < len(choices) <= MAX_CHOICES or "" in choices:
        raise InvalidRequest(f"{param} takes 1 to {MAX_CHOICES} choices, none of them empty.", param)
    return choices
