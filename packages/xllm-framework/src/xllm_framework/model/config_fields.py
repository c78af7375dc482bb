"""Takes checked values out of a model's configuration, whose names differ between model families.

Knows nothing of what a value is for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from xllm_framework.errors import ModelLoadError

MAX_INTEGER = 1 << 40
"""No size of a model is larger; it keeps arithmetic with a broken file's numbers within bounds."""


class ConfigFields:
    """Fields of one configuration, with errors that name `source` and the field.

    Each getter takes the field's names in order of preference; a missing or null field gives the default.
    """

    def __init__(self, fields: Mapping[str, Any], source: str) -> None:
        self._fields = fields
        self._source = source

    def fail(self, what: str) -> NoReturn:
        """Raise the error for `what`."""
        raise ModelLoadError(f"{self._source}: {what}.")

    def get(self, *names: str) -> Any:
        """Return the first of the fields that is there and not null, else None."""
        return next((self._fields[name] for name in names if self._fields.get(name) is not None), None)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return a positive integer; without a default the field must be there."""
        value = self.get(*names)
        if value is None:
            if default is None:
                self.fail(f"the field {' or '.join(names)} is missing")
            if default < 1:
                self.fail(f"{names[0]} is missing and the other sizes do not give one")
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= MAX_INTEGER or value != int(value):
            self.fail(f"{self._name(names)} is {value!r}, not a positive integer")
        return int(value)

    def number(self, *names: str, default: float) -> float:
        """Return a positive finite number."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
            self.fail(f"{self._name(names)} is {value!r}, not a positive number")
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"{self._name(names)} is {value!r}, not true or false")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Return a string."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(f"{self._name(names)} is {value!r}, not a string")
        return value

    def mapping(self, *names: str) -> dict[str, Any]:
        """Return an object, {} by default."""
        value = self.get(*names)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(f"{self._name(names)} is {value!r}, not an object")
        return value

    def token_ids(self, name: str) -> list[int]:
        """Return the ids of a field that is one id or a list of ids."""
        value = self.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                self.fail(f"{name} is {value!r}, not a token id or a list of them")
        return [token_id for token_id in ids if token_id >= 0]

    def _name(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if self._fields.get(name) is not None)
