"""What a caller wants the generated text to look like. Plain data; knows nothing of tokens or of how it is enforced."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from xllm_framework.errors import InvalidRequest

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structure", "free"]

MAX_CONSTRAINT_LENGTH = 256 * 1024
"""Characters of a schema, a regular expression or a grammar."""


class ReasoningTags(msgspec.Struct, frozen=True, array_like=True):
    """The marks between which a model thinks before its answer, and how long it may."""

    open: str
    """What begins it, as "<think>"."""
    close: str
    """What ends it, as "</think>"."""
    is_open: bool
    """Whether the answer begins inside; else it may begin with `open`, or with what is constrained."""
    max_tokens: int | None = None
    """After so many tokens of it, what comes is `forced_close`; None leaves the model its time."""
    forced_close: str = ""
    """Ends with `close`, or with what ends it as well."""
    ends_before: tuple[str, ...] = ()
    """Special tokens that end it too, and belong to the answer."""

    def after(self, prompt: str) -> ReasoningTags | None:
        """Return the tags for an answer to `prompt`, whose end may have opened the thinking already, or ended it."""
        end = prompt.rstrip()
        if end.endswith(self.close):
            return None
        return msgspec.structs.replace(self, is_open=self.is_open or end.endswith(self.open))


class Constraint(msgspec.Struct, frozen=True):
    """The form of the generated text.

    Raises:
        InvalidRequest: an unknown kind, or a text that is too long; `param` is the constraint's.
    """

    kind: ConstraintKind
    text: str = ""
    """A JSON Schema, a regular expression, a JSON list of the strings to choose from, a grammar (Lark, or GBNF as
    llama.cpp has it), or a `Structure`; nothing for json_object, and for free, which only bounds the reasoning."""
    param: str = "response_format"
    """The caller's field, which errors name."""
    reasoning: ReasoningTags | None = None
    """Where set, what the model thinks first is free."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ConstraintKind):
            raise InvalidRequest(f"{self.param} is of an unknown kind: {self.kind!r}.", self.param)
        if len(self.text) > MAX_CONSTRAINT_LENGTH:
            raise InvalidRequest(f"{self.param} has at most {MAX_CONSTRAINT_LENGTH} characters.", self.param)

    def after(self, prompt: str) -> Constraint | None:
        """Return the constraint of an answer to `prompt`; None where it asks for nothing any more."""
        reasoning = None if self.reasoning is None else self.reasoning.after(prompt)
        if self.kind == "free" and reasoning is None:
            return None
        return msgspec.structs.replace(self, reasoning=reasoning)
