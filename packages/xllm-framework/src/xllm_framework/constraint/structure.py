"""The structure of a text, piece by piece, as plain data: what a tool call looks like, say. Knows no library of grammars.

Markup may hold the names of special tokens: whoever compiles a structure for a model knows which parts those are.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from xllm_framework.constraint.constraint import Constraint, ConstraintKind
from xllm_framework.errors import InvalidRequest


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    """Exactly this text."""

    text: str


class Markup(msgspec.Struct, frozen=True, tag="markup"):
    """This text, in which the name of a special token stands for it."""

    text: str


class Json(msgspec.Struct, frozen=True, tag="json"):
    """A JSON value that follows a schema."""

    schema: dict[str, Any]
    param: str = ""
    """The caller's field that holds the schema, which errors name; empty for the constraint's own."""
    is_lenient: bool = False
    """Leave out what cannot be enforced, where else the schema is refused."""


class Pattern(msgspec.Struct, frozen=True, tag="pattern"):
    """Text that a regular expression matches whole."""

    regex: str


class FreeText(msgspec.Struct, frozen=True, tag="text"):
    """Any text up to and with the first `until`, which is markup; any text at all where that is empty.

    Special tokens are no text.
    """

    until: str = ""


class Grammar(msgspec.Struct, frozen=True, tag="grammar"):
    """Text of a context-free grammar (Lark, or GBNF as llama.cpp has it)."""

    text: str


class Sequence(msgspec.Struct, frozen=True, tag="sequence"):
    """One part after the other."""

    parts: tuple[Structure, ...]


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of these."""

    options: tuple[Structure, ...]


class Repeat(msgspec.Struct, frozen=True, tag="repeat"):
    """`part` several times, with `separator` between."""

    part: Structure
    at_least: int = 0
    at_most: int | None = None
    """None: as often as it likes."""
    separator: str = ""
    """Markup."""


Structure = Union[Literal, Markup, Json, Pattern, FreeText, Grammar, Sequence, Choice, Repeat]  # noqa: UP007  # read by msgspec


def sequence(*parts: Structure | str) -> Sequence:
    """Return `parts` one after the other; strings are markup, and empty ones nothing."""
    return Sequence(tuple(Markup(part) if isinstance(part, str) else part for part in parts if part != ""))


def optional(part: Structure) -> Repeat:
    """Return `part` once or not at all."""
    return Repeat(part, at_most=1)


def structure_constraint(structure: Structure, param: str) -> Constraint:
    """Return the constraint to a text of this structure.

    Raises:
        InvalidRequest: it is too large, or a schema in it is nested too deeply; `param` names the field.
    """
    try:
        return Constraint("structure", msgspec.json.encode(structure).decode(), param)
    except RecursionError:
        raise InvalidRequest(f"{param} is nested too deeply.", param) from None


def read_structure(text: str) -> Structure:
    """Return the structure of a constraint's text.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(text, type=Structure)


def structure_of(constraint: Constraint) -> Structure:
    """Return a constraint of any kind as a structure; its reasoning is left out."""
    kind: ConstraintKind = constraint.kind
    match kind:
        case "free":
            return FreeText()
        case "json_object":
            return Json({"type": "object"})
        case "json_schema":
            return Json(msgspec.json.decode(constraint.text, type=dict[str, Any]))
        case "regex":
            return Pattern(constraint.text)
        case "choice":
            return Choice(tuple(Literal(option) for option in msgspec.json.decode(constraint.text, type=list[str])))
        case "grammar":
            return Grammar(constraint.text)
        case "structure":
            return read_structure(constraint.text)
