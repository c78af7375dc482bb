"""OpenAI's own client works with tools and reasoning: its types accept every answer, its stream helper gathers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from xllm_script_model import script

from support import element_call_texts, tool_call_texts
from support.parser_driving import TOOLS
from support.server_process import ServerProcess
from support.shared_servers import tool_server

CITY = '{"city": "ß客", "days": 2}'
TEXTS = {
    "hermes": tool_call_texts.hermes(tool_call_texts.named("get_weather", CITY), tool_call_texts.named("now", "{}")),
    "qwen3_coder": f"{element_call_texts.coder('get_weather', city='ß客', days='2')}\n{element_call_texts.coder('now')}",
}


@pytest.fixture(params=sorted(TEXTS))
def parser(request: pytest.FixtureRequest) -> str:
    """The name of a tool-call parser."""
    return str(request.param)


@pytest.fixture
def tooled(parser: str) -> Iterator[ServerProcess]:
    """A server with that parser."""
    yield tool_server(parser)
    tool_server(parser).assert_alive()


@pytest.fixture
def client(tooled: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client, without retries."""
    with openai.OpenAI(base_url=f"{tooled.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def fields(server: ServerProcess, parser: str) -> dict[str, Any]:
    """Return a chat that thinks, says something and calls two tools."""
    text = f"<think>\nHm.\n</think>\n\nI look.\n{TEXTS[parser]}"
    return {"model": server.model, "messages": [{"role": "user", "content": script(text)}], "tools": TOOLS}


def check(completion: Any) -> None:
    """Check the answer, whole or gathered."""
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == "Hm."
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("get_weather", CITY), ("now", "{}")]
    assert all(call.type == "function" and call.id.startswith("call_") for call in choice.message.tool_calls)


def test_a_whole_answer(client: openai.OpenAI, tooled: ServerProcess, parser: str) -> None:
    raw = client.chat.completions.with_raw_response.create(**fields(tooled, parser))
    completion = ChatCompletion.model_validate_json(raw.content)
    check(completion)
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == len(">\nHm.\n</think>")


def test_a_stream(client: openai.OpenAI, tooled: ServerProcess, parser: str) -> None:
    stream = client.chat.completions.create(
        **fields(tooled, parser), stream=True, stream_options={"include_usage": True}
    )
    chunks = [ChatCompletionChunk.model_validate(chunk.model_dump(exclude_unset=True)) for chunk in stream]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None


def test_the_stream_helper_gathers_the_calls(client: openai.OpenAI, tooled: ServerProcess, parser: str) -> None:
    with client.chat.completions.stream(**fields(tooled, parser)) as stream:
        completion = stream.get_final_completion()
    check(completion)


def test_a_conversation_goes_on_with_the_tools_answers(
    client: openai.OpenAI, tooled: ServerProcess, parser: str
) -> None:
    request = fields(tooled, parser)
    message = client.chat.completions.create(**request).choices[0].message
    assert message.tool_calls is not None
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"ok": 1})} for call in message.tool_calls
    ]
    request["messages"] += [message.model_dump(exclude_none=True), *answers]
    request["messages"].append({"role": "user", "content": script("Done.")})
    completion = client.chat.completions.create(**request)
    assert completion.choices[0].message.content == "Done."
    assert completion.choices[0].message.tool_calls is None
    assert completion.choices[0].finish_reason == "stop"
