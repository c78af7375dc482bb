"""A table of parsers by name, loaded when one is asked for. Knows no format."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Generic, TypeVar, cast

from xllm_framework.errors import InvalidConfig

AUTO = "auto"
OFF = frozenset({"", "none"})

FactoryT = TypeVar("FactoryT")


class ParserTable(Generic[FactoryT]):
    """Parsers of one kind; `option` is what chooses among them on the command line.

    `paths` is name -> "module:Class", `aliases` other name -> name. Names are compared without case, and `_` is `-`.
    """

    def __init__(self, option: str, paths: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._option = option
        self._paths = paths
        self._aliases = aliases

    @property
    def names(self) -> list[str]:
        """Every name, aliases included."""
        return sorted({*self._paths, *self._aliases})

    def load(self, name: str) -> FactoryT:
        """Return the parser class under `name`.

        Raises:
            InvalidConfig: there is none; lists the names.
        """
        module, _, attribute = self._paths[self.resolve(name)].partition(":")
        return cast(FactoryT, getattr(importlib.import_module(module), attribute))

    def resolve(self, name: str) -> str:
        """Return the name in the table that `name` stands for.

        Raises:
            InvalidConfig: there is none; lists the names.
        """
        plain = name.strip().lower().replace("_", "-")
        plain = self._aliases.get(plain, plain)
        if plain not in self._paths:
            raise InvalidConfig(f"{self._option} has no parser {name!r}; it has {AUTO}, none, {', '.join(self.names)}.")
        return plain
