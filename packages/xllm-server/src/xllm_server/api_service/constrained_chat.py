"""What a chat's answer must look like: its format, its tool calls, and how long the thinking before it may be. Knows no
grammars, and formats of models only through their parsers.
"""

from __future__ import annotations

import msgspec

from xllm_framework.constraint import Constraint
from xllm_framework.constraint.structure import Choice, FreeText, structure_constraint, structure_of
from xllm_framework.errors import InvalidRequest
from xllm_framework.request import SamplingParams
from xllm_server.parsers.reasoning.interface import ReasoningParserFactory, ReasoningStart
from xllm_server.parsers.tool_call.interface import ToolCallParserFactory
from xllm_server.protocol.chat import ChatCompletionRequest


def constrain_chat(
    params: SamplingParams,
    body: ChatCompletionRequest,
    tool_call: ToolCallParserFactory | None,
    reasoning: ReasoningParserFactory | None,
) -> SamplingParams:
    """Return `params` with everything that `body` asks of the answer's form; what the model thinks first stays free.

    Raises:
        InvalidRequest: the model's format has no place for it.
    """
    constraint = _form(params.constraint, body, tool_call, reasoning)
    if body.thinking_limit is not None:
        constraint = constraint or _only_thinking(body, tool_call, reasoning)
    if constraint is not None and reasoning is not None:
        calls_end_it = tool_call is not None or constraint.kind == "free"
        tags = reasoning.tags(continuation_start(body), calls_end_it=calls_end_it)
        if tags is not None and body.thinking_limit is not None:
            tags = msgspec.structs.replace(tags, max_tokens=body.thinking_limit.max_tokens)
        if tags is not None or constraint.kind != "free":
            constraint = msgspec.structs.replace(constraint, reasoning=tags)
        else:
            constraint = None
    return msgspec.structs.replace(params, constraint=constraint)


def continuation_start(body: ChatCompletionRequest) -> ReasoningStart:
    """Return what the body says of the answer's beginning."""
    final = body.messages[-1].content if body.continue_final_message else ""
    return ReasoningStart(
        final if isinstance(final, str) else "",
        is_continuation=bool(body.continue_final_message),
        is_thinking_disabled=body.is_thinking_disabled,
    )


def _form(
    content: Constraint | None,
    body: ChatCompletionRequest,
    tool_call: ToolCallParserFactory | None,
    reasoning: ReasoningParserFactory | None,
) -> Constraint | None:
    tools = body.callable_tools()
    limit = body.max_tool_calls
    if tool_call is not None and body.must_call:
        return structure_constraint(tool_call.forced_calls(tools, limit), "tool_choice")
    if content is not None:
        return _content_or_calls(content, body, tool_call, reasoning)
    if tool_call is not None and body.limits_calls:
        return structure_constraint(tool_call.free_calls(tools, limit), "tools")
    return None


def _content_or_calls(
    content: Constraint,
    body: ChatCompletionRequest,
    tool_call: ToolCallParserFactory | None,
    reasoning: ReasoningParserFactory | None,
) -> Constraint:
    plain = structure_of(content)
    answer = plain if reasoning is None else reasoning.answer(plain)
    if tool_call is not None:
        calls = tool_call.forced_calls(body.callable_tools(), body.max_tool_calls)
        return structure_constraint(Choice((answer, calls)), content.param)
    return content if answer == plain else structure_constraint(answer, content.param)


def _only_thinking(
    body: ChatCompletionRequest, tool_call: ToolCallParserFactory | None, reasoning: ReasoningParserFactory | None
) -> Constraint | None:
    """Return what follows a bounded thinking where nothing else is asked for."""
    assert body.thinking_limit is not None, "the caller has looked"
    param, is_wish = body.thinking_limit.param, body.thinking_limit.is_wish
    if reasoning is None:
        if is_wish:
            return None
        raise InvalidRequest(
            f"{param} is not supported: it is not known how this model writes its thinking (see --reasoning-parser).",
            param,
        )
    plain = FreeText()
    if reasoning.answer(plain) == plain:
        return Constraint("free", param=param)
    answer = reasoning.answer(plain) if tool_call is None else tool_call.free_calls(body.callable_tools(), None)
    return structure_constraint(answer, param)
