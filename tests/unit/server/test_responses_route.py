"""/v1/responses over a master that plays a script: OpenAI's own client reads every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import openai
import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_framework.config import ModelConfig
from xllm_server.api_service.response_store import ResponseStore
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.protocol.responses import ResponseAnswer

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}, "strict": False}
REPLY = '<think>so</think>I call.<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
PARSERS = ModelParsers.choose(ModelConfig(tool_call_parser="hermes", reasoning_parser="think"), "", "")


def with_client(
    scenario: Callable[[openai.AsyncOpenAI], Coroutine[Any, Any, Any]], master: FakeMaster, **options: Any
) -> Any:
    """Run `scenario` with OpenAI's client."""

    async def run(app: Any, _: Any) -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            client = openai.AsyncOpenAI(api_key="secret", http_client=http, base_url="http://test/v1", max_retries=0)
            return await scenario(client)

    return serve(run, master, parsers=PARSERS, **options)


def ask(content: Any, master: FakeMaster | None = None) -> Answer:
    """Make one request without a client."""
    return serve(lambda app, _: call(app, PATH, content), master or FakeMaster(), parsers=PARSERS)


def test_the_client_reads_a_whole_answer() -> None:
    async def scenario(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model="org/fake", input="hi", metadata={"k": "v"})
        assert (response.output_text, response.status, response.metadata) == ("hello", "completed", {"k": "v"})
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (8, 6, 14)
        cut = await client.responses.create(model="org/fake", input="hi", max_output_tokens=2)
        assert cut.status == "incomplete"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"

    with_client(scenario, FakeMaster(), api_key="secret")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_text_and_calls_are_items(is_streamed: bool) -> None:
    async def scenario(client: openai.AsyncOpenAI) -> Any:
        body: dict[str, Any] = {"model": "org/fake", "input": "hi", "tools": [TOOL]}
        if not is_streamed:
            return await client.responses.create(**body)
        async with client.responses.stream(**body) as stream:
            return await stream.get_final_response()

    response = with_client(scenario, FakeMaster(REPLY.encode()))
    reasoning, message, tool = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "so")
    assert (message.type, message.content[0].text) == ("message", "I call.")
    assert (tool.type, tool.name, tool.arguments) == ("function_call", "f", '{"a": [1, 2]}')
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_the_events_of_a_stream() -> None:
    async def scenario(client: openai.AsyncOpenAI) -> list[Any]:
        stream = await client.responses.create(model="org/fake", input="hi", stream=True)
        return [event async for event in stream]

    events = with_client(scenario, FakeMaster())
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "hello"
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {events[-1].response.output[0].id}


def test_a_stream_that_fails_says_so() -> None:
    master = FakeMaster()
    master.fail_at = 2

    async def scenario(client: openai.AsyncOpenAI) -> Any:
        stream = await client.responses.create(model="org/fake", input="hi", stream=True)
        return [event async for event in stream][-1]

    last = with_client(scenario, master)
    assert last.type == "response.failed"
    assert last.response.error.message == "The model raised."


def test_going_on_from_an_answer() -> None:
    master = FakeMaster()

    async def scenario(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="org/fake", input="one", instructions="be kind")
        second = await client.responses.create(model="org/fake", input="two", previous_response_id=first.id)
        chat = master.seen[-1][0]
        assert [(m["role"], m["content"]) for m in chat.messages] == [
            ("user", "one"),
            ("assistant", "hello"),
            ("user", "two"),
        ]
        assert (await client.responses.retrieve(second.id)).output_text == "hello"
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="org/fake", input="three", previous_response_id=first.id)
        third = await client.responses.create(model="org/fake", input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(third.id)

    with_client(scenario, master)


def test_the_answer_before_may_be_forgotten_while_the_next_one_is_computed() -> None:
    master = FakeMaster()

    async def scenario(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="org/fake", input="one")
        master.hold_at = 0
        asking = asyncio.create_task(
            client.responses.create(model="org/fake", input="two", previous_response_id=first.id)
        )
        while len(master.seen) < 2:
            await asyncio.sleep(0.001)
        await client.responses.delete(first.id)
        master.hold_at = None
        second = await asking
        assert second.output_text == "hello"
        await client.responses.create(model="org/fake", input="three", previous_response_id=second.id)
        contents = [message["content"] for message in master.seen[-1][0].messages]
        assert contents == ["one", "hello", "two", "hello", "three"], "the second answer keeps the whole conversation"

    with_client(scenario, master)


def test_items_become_turns() -> None:
    master = FakeMaster()
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
        {"type": "message", "role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
    ]
    assert ask({"input": items, "tools": [TOOL], "reasoning": {"effort": "low"}}, master).status == 200
    chat = master.seen[-1][0]
    assert [message["role"] for message in chat.messages] == ["developer", "user", "assistant", "tool"]
    assert chat.messages[2]["reasoning_content"] == "hm"
    assert [tool_call["id"] for tool_call in chat.messages[2]["tool_calls"]] == ["c1", "c2"]
    assert chat.template_kwargs == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"previous_response_id": "resp_no"}, "previous_response_id"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    answer = ask({"input": "hi", **fields})
    assert answer.status in (400, 404)
    assert answer.error["param"] == param


def answer_named(name: str) -> ResponseAnswer:
    """Return an answer that only has its id."""
    return ResponseAnswer(
        id=name,
        created_at=0,
        status="completed",
        instructions=None,
        max_output_tokens=None,
        metadata={},
        model="m",
        output=[],
        parallel_tool_calls=True,
        previous_response_id=None,
        reasoning={},
        store=True,
        temperature=1.0,
        text={},
        tool_choice="auto",
        tools=[],
        top_p=1.0,
    )


def test_the_store_forgets_the_oldest_and_counts_characters() -> None:
    store = ResponseStore(max_responses=2, max_characters=100)
    for name in ("a", "b"):
        store.put(answer_named(name), [{"c": "x" * 30}])
    assert store.get("a") is not None, "and so used later than b"
    store.put(answer_named("c"), [{"c": "x" * 30}])
    assert (store.get("a") is not None, store.get("b")) == (True, None)
    store.put(answer_named("d"), [{"c": "x" * 200}])
    assert store.get("d") is None
    assert not store.remove("d")
    store.put(answer_named("e"), [{"c": "x" * 30}])
    assert store.get("e") is not None
