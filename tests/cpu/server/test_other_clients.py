"""Clients that programs are written with, LangChain's and litellm, against the live server."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from xllm_script_model import script

from support.server_process import ServerProcess
from support.shared_servers import tool_server
from support.tool_call_texts import hermes, named

pytestmark = pytest.mark.filterwarnings("ignore")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = hermes(named("get_weather", '{"city": "Bonn"}'))


class Person(BaseModel):
    """Who it is."""

    name: str
    age: int


@pytest.fixture
def server() -> ServerProcess:
    """The script model, read by the parsers for Hermes and <think>."""
    return tool_server("hermes")


@pytest.fixture
def langchain(server: ServerProcess) -> Iterator[Any]:
    """LangChain's chat model over the server; its own connections would stay open until the interpreter ends."""
    openai = pytest.importorskip("langchain_openai")
    options = {"model": server.model, "base_url": f"{server.base_url}/v1", "api_key": "unused", "temperature": 0}
    with httpx.Client() as http:
        yield openai.ChatOpenAI(**options, max_retries=0, http_client=http)


def test_langchain_answers_and_streams(langchain: Any) -> None:
    prompt = script(*"Hello there")
    answer = langchain.invoke(prompt)
    assert answer.content == "Hello there"
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    assert "".join(chunk.content for chunk in langchain.stream(prompt)) == "Hello there"


@pytest.mark.parametrize("choice", [None, "any", "get_weather"])
def test_langchain_calls_tools(langchain: Any, choice: str | None) -> None:
    bound = langchain.bind_tools([WEATHER], tool_choice=choice)
    answer = bound.invoke(script(CALL))
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "Bonn"})]
    whole = None
    for chunk in bound.stream(script(CALL)):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Bonn"}]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_structured_output(langchain: Any, method: str) -> None:
    text = '{"name": "Ada", "age": 36}'
    wanted = text if method == "json_schema" else hermes(named("Person", text))
    structured = langchain.with_structured_output(Person, method=method)
    assert structured.invoke(script(wanted)) == Person(name="Ada", age=36)


@pytest.fixture
def litellm(server: ServerProcess) -> Any:
    """The litellm module."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("litellm")
    module.suppress_debug_info = True
    module.telemetry = False
    yield module
    for client in module.in_memory_llm_clients_cache.cache_dict.values():  # which it keeps, and never closes
        if isinstance(client, openai.OpenAI):
            client.close()


@pytest.mark.parametrize("provider", ["openai", "anthropic", "hosted_vllm"])
def test_litellm_answers_and_streams(litellm: Any, server: ServerProcess, provider: str) -> None:
    base = server.base_url if provider == "anthropic" else f"{server.base_url}/v1"
    options = {"model": f"{provider}/{server.model}", "api_base": base, "api_key": "unused", "max_tokens": 100}
    messages = [{"role": "user", "content": script(*"Hello there")}]
    answer = litellm.completion(messages=messages, **options)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage.completion_tokens > 0
    chunks = litellm.completion(messages=messages, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    called = litellm.completion(
        messages=[{"role": "user", "content": script(CALL)}], tools=[WEATHER], tool_choice="required", **options
    )
    [call] = called.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments.replace(" ", "")) == ("get_weather", '{"city":"Bonn"}')
