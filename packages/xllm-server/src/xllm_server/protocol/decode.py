"""From the bytes of a body to a checked request type. Knows nothing of what the fields mean.

orjson parses (it refuses NaN, infinities, lone surrogates and nesting beyond 1024, and says where), msgspec checks types.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import orjson

from xllm_framework.errors import InvalidRequest
from xllm_server.errors import UnsupportedMediaType
from xllm_server.protocol.unsupported import refuse_unsupported

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

_LOCATION = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_LAST_KEY = re.compile(r'"([A-Za-z_]\w*)"\s*:\s*(?:-|"[^"]*)?$')


def check_content_type(content_type: str | None) -> None:
    """Check that the body is declared as JSON, or as nothing.

    Raises:
        UnsupportedMediaType: anything else, `param` is the header's name.
    """
    media_type = (content_type or "application/json").split(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {media_type[:100]!r}.", "Content-Type")


def decode_request(body: bytes, request_type: type[RequestT]) -> RequestT:
    """Parse and check `body`. Unknown fields are ignored; those known to change the meaning are refused by name.

    Raises:
        InvalidRequest: not JSON, a wrong type or a value that is not supported; `param` is the field's path.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", _key_before(error)) from None
    if not isinstance(content, dict):
        raise InvalidRequest("The body must be a JSON object.")
    refuse_unsupported(content, request_type.__struct_fields__)
    return convert_request(content, request_type)


def convert_request(content: dict[str, Any], request_type: type[RequestT]) -> RequestT:
    """Check parsed JSON against `request_type`.

    Raises:
        InvalidRequest: a wrong type; `param` is the field's path, as `messages[0].content`.
    """
    try:
        return msgspec.convert(content, request_type, str_keys=True)
    except msgspec.ValidationError as error:
        match = _LOCATION.match(str(error))
        assert match is not None, "the pattern matches every string"
        path = (match["path"] or "").removesuffix("[...]") or None
        missing = re.search(r"missing required field `(\w+)`", match["what"])
        if missing:
            path = f"{path}.{missing[1]}" if path else missing[1]
        raise InvalidRequest(f"{path or 'The body'}: {match['what']}.", path) from None


def _key_before(error: orjson.JSONDecodeError) -> str | None:
    """Return the object key whose value holds the fault, when that is easy to see."""
    match = _LAST_KEY.search(error.doc[max(0, error.pos - 200) : error.pos])
    return match[1] if match else None
