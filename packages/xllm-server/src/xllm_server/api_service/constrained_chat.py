"""Joins a chat's constraint with the model's thinking: what it thinks first stays free. Knows no grammars."""

from __future__ import annotations

import msgspec

from xllm_framework.constraint import ReasoningTags
from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_server.parsers.reasoning.interface import ReasoningParserFactory
from xllm_server.parsers.reasoning.think_tags import ThinkTagParser
from xllm_server.protocol.chat import ChatCompletionRequest


def constrain_after_thinking(
    params: SamplingParams, body: ChatCompletionRequest, parser: ReasoningParserFactory | None
) -> SamplingParams:
    """Return `params`, whose constraint, if any, then begins after the thinking that `parser` would find in the answer.

    Raises:
        InvalidRequest: there is a constraint, and the model's format of thinking has no place for it.
    """
    if params.constraint is None or parser is None:
        return params
    if not (isinstance(parser, type) and issubclass(parser, ThinkTagParser)):
        param = params.constraint.param
        raise InvalidRequest(f"{param} is not supported with the way in which this model writes its answers.", param)
    return msgspec.structs.replace(
        params, constraint=msgspec.structs.replace(params.constraint, reasoning=_tags(body, parser))
    )


def _tags(body: ChatCompletionRequest, parser: type[ThinkTagParser]) -> ReasoningTags | None:
    is_open = parser.begins_open and not body.is_thinking_disabled
    if body.continue_final_message:
        final = body.messages[-1].content
        text = final if isinstance(final, str) else ""
        is_open = text.rfind(parser.open_tag) > text.rfind(parser.close_tag)
        if not is_open:
            return None
    return ReasoningTags(parser.open_tag, parser.close_tag, is_open)
