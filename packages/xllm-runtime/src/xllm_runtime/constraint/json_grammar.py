"""The options by which llguidance reads schemas. Knows nothing of what the schemas are for.

White space in JSON is bounded: a model that likes it could else put it out for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


def json_options(*, is_lenient: bool = False) -> JsonCompileOptions:
    """Return the options; lenient ones pass over what cannot be enforced, where else the schema is refused."""
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": r"[ \t]{1,2}|\r?\n[ \t]{0,64}",
        "coerce_one_of": is_lenient,
        "lenient": is_lenient,
    }
