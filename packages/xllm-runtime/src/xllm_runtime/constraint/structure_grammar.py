"""From a structure to the text that llguidance compiles: each node a rule, equal nodes the same rule. Knows no formats."""

from __future__ import annotations

import json
from typing import Any, assert_never

import msgspec
from llguidance import LLMatcher

from xllm_framework.constraint import structure as nodes
from xllm_framework.constraint.structure import Structure
from xllm_framework.errors import InvalidRequest
from xllm_runtime.constraint.context_free import lark_grammar
from xllm_runtime.constraint.endless_schema import is_endless
from xllm_runtime.constraint.json_grammar import json_options
from xllm_runtime.constraint.json_schema import read_schema, relaxed_schema
from xllm_runtime.constraint.vocabulary import Vocabulary

MAX_REGEX_LENGTH = 16 * 1024
MAX_RULES = 16 * 1024
_ANY_TEXT = "/(?s:.*)/"


def structure_grammar(structure: Structure, vocabulary: Vocabulary, param: str) -> str:
    """Return llguidance's form of `structure` for a model with this vocabulary.

    Raises:
        InvalidRequest: a schema or a pattern in it cannot be enforced, or it is too large; `param` names the field, where
            the part itself does not.
    """
    return _Writer(vocabulary, param).write(structure)


class _Writer:
    """Collects rules."""

    def __init__(self, vocabulary: Vocabulary, param: str) -> None:
        self._vocabulary = vocabulary
        self._param = param
        self._rules: list[str] = []
        self._names: dict[bytes, str] = {}
        self._grammars: list[dict[str, str]] = []

    def write(self, structure: Structure) -> str:
        lark = "\n".join([f"start: {self._rule(structure)}", *self._rules])
        if not self._grammars:
            return str(LLMatcher.grammar_from_lark(lark))
        return json.dumps({"grammars": [{"name": "structure", "lark_grammar": lark}, *self._grammars]})

    def _rule(self, node: Structure) -> str:
        """Return the name of the rule for `node`."""
        key = msgspec.json.encode(node)
        if key not in self._names:
            if len(self._names) >= MAX_RULES:
                raise InvalidRequest(f"{self._param} has more than {MAX_RULES} parts.", self._param)
            name = self._names[key] = f"part_{len(self._names)}"
            self._rules.append(self._definition(name, node))
        return self._names[key]

    def _definition(self, name: str, node: Structure) -> str:
        match node:
            case nodes.Literal(text):
                body = _quoted(text)
            case nodes.Markup(text):
                body = self._markup(text)
            case nodes.Json():
                body = f"%json {json.dumps(self._schema(node))}"
            case nodes.Pattern(regex):
                body = self._regex(regex)
            case nodes.FreeText(until):
                return self._free_text(name, until)
            case nodes.Grammar(text):
                self._grammars.append({"name": f"{name}_grammar", "lark_grammar": lark_grammar(text, self._param)})
                body = f"@{name}_grammar"
            case nodes.Sequence(parts):
                body = " ".join(map(self._rule, parts)) or '""'
            case nodes.Choice(options):
                body = " | ".join(map(self._rule, options))
            case nodes.Repeat():
                body = self._repeat(node)
            case _:
                assert_never(node)
        return f"{name}: {body}"

    def _markup(self, text: str) -> str:
        pieces = self._vocabulary.split_marks(text)
        return " ".join(f"<[{piece}]>" if isinstance(piece, int) else _quoted(piece) for piece in pieces) or '""'

    def _free_text(self, name: str, until: str) -> str:
        """Return a rule for text up to a mark: a special token cannot be text, anything else must be looked for."""
        if not until:
            return f"{name}: {_ANY_TEXT}"
        if any(isinstance(piece, int) for piece in self._vocabulary.split_marks(until)):
            return f"{name}: {self._rule(nodes.FreeText())} {self._markup(until)}"
        return f"{name}[suffix={_quoted(until)}]: {_ANY_TEXT}"

    def _schema(self, node: nodes.Json) -> dict[str, Any]:
        param = node.param or self._param
        text = msgspec.json.encode(node.schema).decode()
        schema = relaxed_schema(text, param) if node.is_lenient else read_schema(text, param)
        if is_endless(schema):
            raise InvalidRequest(f"{param}: no finite value satisfies the schema, which refers to itself.", param)
        return schema | {"x-guidance": json_options(is_lenient=node.is_lenient)}

    def _regex(self, regex: str) -> str:
        if len(regex) > MAX_REGEX_LENGTH:
            raise InvalidRequest(f"{self._param}: a regex has at most {MAX_REGEX_LENGTH} characters.", self._param)
        grammar: str = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]
        return grammar.removeprefix("start: ")

    def _repeat(self, node: nodes.Repeat) -> str:
        if node.at_most == 0:
            return '""'
        part = self._rule(node.part)
        if not node.separator:
            return _times(part, node.at_least, node.at_most)
        at_most = None if node.at_most is None else node.at_most - 1
        more = _times(f"{self._markup(node.separator)} {part}", max(0, node.at_least - 1), at_most)
        return f"{part} {more}" if node.at_least else f"({part} {more})?"


def _times(body: str, at_least: int, at_most: int | None) -> str:
    if at_most == 0:
        return ""
    return f"({body}){{{at_least},{'' if at_most is None else at_most}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
