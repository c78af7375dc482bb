"""Tools in chat bodies: definitions and choices that come in, calls that go out. Knows nothing of parsers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from xllm_framework.errors import InvalidRequest

MAX_NAME_LENGTH = 256
_MARKS_IN_NAMES = frozenset("\"'<>{}()[],=")
"""Characters that no format of tool calls can carry in a name."""


class FunctionDefinition(msgspec.Struct):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments, an object."""
    strict: bool | None = None
    """Whether arguments must follow the schema, once the model calls the function of its own accord. Those of a call that
    `tool_choice` asks for follow it anyway."""


class ToolDefinition(msgspec.Struct):
    """An entry of `tools`."""

    function: FunctionDefinition
    type: Literal["function"] = "function"

    def check(self, path: str) -> None:
        """Check the name; `path` names the entry in errors.

        Raises:
            InvalidRequest: it is empty, too long, or holds what no format can carry.
        """
        name = self.function.name
        is_plain = name.isprintable() and not any(char.isspace() or char in _MARKS_IN_NAMES for char in name)
        if not (0 < len(name) <= MAX_NAME_LENGTH and is_plain):
            raise InvalidRequest(
                f"A function's name has 1 to {MAX_NAME_LENGTH} characters, none of them white space, a quote or a bracket.",
                f"{path}.function.name",
            )

    def to_template(self) -> dict[str, Any]:
        """Return what a chat template sees: the definition without what was left out."""
        function: dict[str, Any] = {"name": self.function.name}
        for field in ("description", "parameters", "strict"):
            value = getattr(self.function, field)
            if value is not None:
                function[field] = value
        return {"type": self.type, "function": function}


class NamedFunction(msgspec.Struct):
    """The function of a `NamedToolChoice`."""

    name: str


class NamedToolChoice(msgspec.Struct, tag_field="type", tag="function"):
    """A `tool_choice` that asks for one function."""

    function: NamedFunction


class AllowedTool(msgspec.Struct):
    """An entry of `AllowedTools`."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct):
    """Which of the tools may be called, and whether one must."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` among some of the tools; the model is shown all of them."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


def chosen_names(choice: ToolChoice | None) -> set[str] | None:
    """Return the functions that a choice allows; None for all."""
    if isinstance(choice, NamedToolChoice):
        return {choice.function.name}
    if isinstance(choice, AllowedToolsChoice):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return None


def must_call(choice: ToolChoice | None) -> bool:
    """Whether an answer must be a call."""
    if isinstance(choice, AllowedToolsChoice):
        return choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedToolChoice)


def check_tools(tools: list[ToolDefinition], choice: ToolChoice | None) -> None:
    """Check a request's tools and its choice among them.

    Raises:
        InvalidRequest: a name is wrong or taken, or the choice names no tool.
    """
    names: set[str] = set()
    for index, tool in enumerate(tools):
        tool.check(f"tools[{index}]")
        if tool.function.name in names:
            raise InvalidRequest(f"Two tools are named {tool.function.name!r}.", f"tools[{index}].function.name")
        names.add(tool.function.name)
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise InvalidRequest("tool_choice needs tools.", "tool_choice")
    chosen = chosen_names(choice)
    if chosen is None:
        return
    if not chosen:
        raise InvalidRequest("tool_choice allows no tool at all.", "tool_choice")
    for name in sorted(chosen - names):
        raise InvalidRequest(f"tool_choice names {name[:100]!r}, which is none of tools.", "tool_choice")


class FunctionCall(msgspec.Struct):
    """A call's function; `arguments` is JSON as the model wrote it, which need not be valid."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call in a finished answer."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a call's function; the name comes once, first."""

    name: str | None = None
    arguments: str | None = None


class ToolCallChunk(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a call; id and type come once, first."""

    index: int
    id: str | None = None
    function: FunctionCallDelta | None = None
    type: Literal["function"] | None = None
