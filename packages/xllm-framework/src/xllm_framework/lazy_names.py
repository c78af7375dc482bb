"""Names of a package that are imported when they are first asked for. Knows nothing of what they are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`: its names by the modules that `homes` says (PEP 562).

    Raises (the function returned):
        AttributeError: there is no such name.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get
