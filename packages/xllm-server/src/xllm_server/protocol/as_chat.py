"""Requests of other APIs as chat requests: one path through template, parsers and engine serves them all.

Knows nothing of those APIs: they say what a request means as a chat's body, and how they spell its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xllm_framework.errors import InvalidRequest
from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.decode import convert_request
from xllm_server.protocol.engine_request import EngineRequest
from xllm_server.protocol.unsupported import refuse_unsupported


def chat_request(origin: EngineRequest, content: dict[str, Any], names: Mapping[str, str]) -> ChatCompletionRequest:
    """Return the chat request with this `content`, and the engine's fields of `origin`; None counts as left out.

    Raises:
        InvalidRequest: it is not served; where `param` is in `names`, the other API's name stands for it.
    """
    content = {name: value for name, value in content.items() if value is not None}
    try:
        refuse_unsupported(content, ChatCompletionRequest.__struct_fields__)
        body = convert_request(content, ChatCompletionRequest)
        for name in EngineRequest.__struct_fields__:
            setattr(body, name, getattr(origin, name))
        body.check()
    except InvalidRequest as error:
        raise renamed(error, names) from None
    return body


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """Return `error` about the field as another API spells it, where `names` knows it."""
    if error.param is None or error.param not in names:
        return error
    name = names[error.param]
    return InvalidRequest(error.message.replace(error.param, name), name)
