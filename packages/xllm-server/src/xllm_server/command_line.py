"""Reads a command line into option values, all still text. Knows which flags exist, not what their values mean.

`--block-size 32`, `--block_size=32`, `--enable-prefix-cache`, `--no-enable-prefix-cache`, `--enable_prefix_cache=false` and a
model as the one argument without a flag are all understood.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_server.flag_names import ALIASES, HARMLESS, REFUSED, VALUES

FILES = ("config", "dump_config")
_SWITCH_VALUES = {"true": "true", "false": "false", "1": "true", "0": "false"}


@dataclass(slots=True)
class CommandLine:
    """What was given."""

    values: dict[str, str] = field(default_factory=dict)
    """Option -> its value's text; a later flag goes before an earlier one."""
    files: dict[str, str] = field(default_factory=dict)
    """config and dump_config, if given."""


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return what `arguments` say.

    Raises:
        InvalidConfig: a flag is unknown, refused, or lacks its value; the message says what to do.
    """
    defaults = XLLMConfig().to_flat()
    switches = {name for name, value in defaults.items() if isinstance(value, bool)}
    switches |= {name for name, option in ALIASES.items() if option in switches}
    switches |= {name for name, (values, _) in HARMLESS.items() if {"true", "false"} & set(values)}
    result = CommandLine()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            _take_model(result, argument)
            continue
        name, has_value, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if name.startswith("no_") and name[3:] in switches and not has_value:
            name, value = name[3:], "false"
        elif not has_value and name in switches:
            value = rest.pop(0) if rest and rest[0].lower() in _SWITCH_VALUES else "true"
        elif not has_value:
            value = _next_value(argument, name, rest, defaults)
        if name in switches:
            value = _SWITCH_VALUES.get(value.lower(), value)
        _add(result, name, value, defaults)
    return result


def _take_model(result: CommandLine, argument: str) -> None:
    if "model" in result.values:
        raise InvalidConfig(f"Unexpected argument {argument!r}: flags begin with two dashes.")
    result.values["model"] = argument


def _next_value(argument: str, name: str, rest: list[str], defaults: dict[str, object]) -> str:
    """Return the argument that is the flag's value; a refused or unknown flag need not have one."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if name in defaults or name in ALIASES or name in FILES or name in HARMLESS:
        raise InvalidConfig(f"{argument} needs a value.")
    return ""


def _add(result: CommandLine, name: str, value: str, defaults: dict[str, object]) -> None:
    """Note one flag."""
    flag = "--" + name.replace("_", "-")
    value = VALUES.get(name, {}).get(value, value)
    option = name if name in defaults or name in FILES else ALIASES.get(name, "")
    if option in FILES:
        result.files[option] = value
    elif option:
        result.values[option] = value
    elif name in HARMLESS:
        accepted, reason = HARMLESS[name]
        if value not in accepted:
            raise InvalidConfig(f"{flag} {value} is not served: {reason}.")
    elif name in REFUSED:
        raise InvalidConfig(f"{flag} is no flag here: {REFUSED[name]}.")
    else:
        similar = difflib.get_close_matches(name, [*defaults, *FILES, *ALIASES], n=1)
        hint = f"; did you mean --{similar[0].replace('_', '-')}?" if similar else "; see --help."
        raise InvalidConfig(f"There is no flag {flag}{hint}")
