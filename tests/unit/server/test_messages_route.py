"""/v1/messages and its count, over a master that plays a script: Anthropic's own client reads every answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anthropic
import httpx2
import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_framework.config import ModelConfig
from xllm_server.parsers.model_parsers import ModelParsers

PATH = "/v1/messages"
MODEL = "org/fake"
HELLO: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object"}}
REPLY = '<think>so</think>I call.<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
PARSERS = ModelParsers.choose(ModelConfig(tool_call_parser="hermes", reasoning_parser="think"), "", "")


def with_client(
    scenario: Callable[[anthropic.AsyncAnthropic], Coroutine[Any, Any, Any]], master: FakeMaster, **options: Any
) -> Any:
    """Run `scenario` with Anthropic's client."""

    async def run(app: Any, _: Any) -> Any:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            client = anthropic.AsyncAnthropic(api_key="secret", http_client=http, base_url="http://test", max_retries=0)
            return await scenario(client)

    return serve(run, master, parsers=PARSERS, **options)


def ask(content: Any, master: FakeMaster | None = None, path: str = PATH) -> Answer:
    """Make one request without a client."""
    return serve(lambda app, _: call(app, path, content), master or FakeMaster(), parsers=PARSERS)


def test_the_client_reads_a_whole_answer() -> None:
    async def scenario(client: anthropic.AsyncAnthropic) -> None:
        message = await client.messages.create(**HELLO)
        assert [block.model_dump(exclude_none=True) for block in message.content] == [{"text": "hello", "type": "text"}]
        assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
        assert (message.usage.input_tokens, message.usage.output_tokens) == (8, 6)
        assert message.id.startswith("msg_")
        cut = await client.messages.create(**HELLO | {"max_tokens": 2})
        assert cut.stop_reason == "max_tokens"

    with_client(scenario, FakeMaster(), api_key="secret")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_thinking_text_and_tools_are_blocks(is_streamed: bool) -> None:
    async def scenario(client: anthropic.AsyncAnthropic) -> anthropic.types.Message:
        body: dict[str, Any] = HELLO | {"max_tokens": 1000, "tools": [TOOL]}
        if not is_streamed:
            return await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            return await stream.get_final_message()

    message = with_client(scenario, FakeMaster(REPLY.encode()))
    thinking, text, tool = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "so")
    assert (text.type, text.text) == ("text", "I call.")
    assert (tool.type, tool.name, tool.input) == ("tool_use", "f", {"a": [1, 2]})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(REPLY) + 1


def test_the_events_of_a_stream() -> None:
    answer = ask(HELLO | {"stream": True})
    blocks = [block.split("\n") for block in answer.body.decode().split("\n\n") if block]
    names = [first.removeprefix("event: ") for first, _ in blocks]
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 5,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_an_error_in_a_stream_is_an_event() -> None:
    master = FakeMaster()
    master.fail_at = 2
    *_, last = [block for block in ask(HELLO | {"stream": True}, master).body.decode().split("\n\n") if block]
    assert last.startswith("event: error\n")
    assert '"api_error"' in last


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"stop_sequences": ["x"] * 17}, "stop"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice"),
        ({"temperature": 3}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "name"),
    ],
)
def test_what_is_refused_has_anthropics_shape(fields: dict[str, Any], said: str) -> None:
    answer = ask(HELLO | fields)
    assert answer.status == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert said in answer.json()["error"]["message"]


def test_another_model_is_not_found() -> None:
    async def scenario(client: anthropic.AsyncAnthropic) -> None:
        with pytest.raises(anthropic.NotFoundError, match="org/fake"):
            await client.messages.create(**HELLO | {"model": "claude"})

    with_client(scenario, FakeMaster())


def test_a_full_queue_says_when_to_come_again() -> None:
    master = FakeMaster()
    master.is_full = True
    answer = ask(HELLO, master)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_what_the_template_sees() -> None:
    master = FakeMaster()
    body = HELLO | {
        "system": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
        "thinking": {"type": "disabled"},
        "stop_sequences": ["END"],
        "tools": [TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"k": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "go"},
                ],
            },
        ],
    }
    assert ask(body, master).status == 200
    chat, params, _ = master.seen[-1]
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    assistant, tool = chat.messages[2], chat.messages[3]
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"k":1}'}
    assert tool["tool_call_id"] == "t1"
    assert chat.tools[0]["function"]["parameters"] == {"type": "object"}
    assert chat.template_kwargs == {"enable_thinking": False}
    assert (params.stop, params.max_tokens) == (("END",), 100)


def test_counting_tokens() -> None:
    async def scenario(client: anthropic.AsyncAnthropic) -> None:
        count = await client.messages.count_tokens(model=MODEL, messages=HELLO["messages"])
        assert count.input_tokens == len("<user>hi")
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(model=MODEL, messages=[])

    with_client(scenario, FakeMaster())
