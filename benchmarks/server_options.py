"""Options of the server on a benchmark's command line. Knows none of them."""

from __future__ import annotations

import json
from typing import Any


def server_options(pairs: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as options; a value is read as JSON, or else as it is."""
    found: dict[str, Any] = {}
    for name, value in (pair.split("=", 1) for pair in pairs):
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
