"""OpenAI's own Python client works against the server, and its types accept every answer."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from xllm_script_model import RAISE, script

from support.server_process import ServerProcess
from support.shared_servers import API_KEY, strict_server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client, without retries."""
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def user(*tokens: int | str | bytes) -> list[dict[str, str]]:
    """Return a chat that makes the script model say these tokens."""
    return [{"role": "user", "content": script(*tokens)}]


def test_chat(client: openai.OpenAI, server: ServerProcess) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=server.model, messages=user("hello"), logprobs=True, top_logprobs=2, n=2, seed=0, user="me"
    )
    completion = ChatCompletion.model_validate_json(raw.content)
    assert [choice.message.content for choice in completion.choices] == ["hello", "hello"]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 12
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == list("hello")
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)


def test_chat_stream(client: openai.OpenAI, server: ServerProcess) -> None:
    stream = client.chat.completions.create(
        model=server.model, messages=user("hello"), stream=True, stream_options={"include_usage": True}, logprobs=True
    )
    chunks = [ChatCompletionChunk.model_validate(chunk.model_dump(exclude_unset=True)) for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_the_stream_helper_gathers_the_answer(client: openai.OpenAI, server: ServerProcess) -> None:
    with client.chat.completions.stream(model=server.model, messages=user("hello")) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "hello"
    assert completion.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI, server: ServerProcess) -> None:
    raw = client.completions.with_raw_response.create(
        model=server.model, prompt=[script("a"), script("b")], echo=True, logprobs=1, n=2
    )
    completion = Completion.model_validate_json(raw.content)
    assert [choice.text[-1] for choice in completion.choices] == ["a", "a", "b", "b"]
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


def test_completions_stream(client: openai.OpenAI, server: ServerProcess) -> None:
    stream = client.completions.create(model=server.model, prompt=list(script("hey").encode()[:3]), stream=True)
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "stop"


def test_models(client: openai.OpenAI, server: ServerProcess) -> None:
    (model,) = client.models.list().data
    assert Model.model_validate(model.model_dump()) == client.models.retrieve(model.id)


def test_errors_have_the_classes_that_clients_catch(client: openai.OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=server.model, messages=user("x"), temperature=9)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4", messages=user("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=server.model, messages=user(RAISE))
    with pytest.raises(openai.APIError, match="raises"):
        for _ in client.chat.completions.create(model=server.model, messages=user("x", RAISE), stream=True):
            pass


def test_the_key() -> None:
    base_url = f"{strict_server().base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0) as client:
        assert client.models.list().data
    with (
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_embeddings(client: openai.OpenAI, server: ServerProcess) -> None:
    raw = client.embeddings.with_raw_response.create(model=server.model, input=["one", "two"], encoding_format="float")
    plain = CreateEmbeddingResponse.model_validate_json(raw.content)
    packed = client.embeddings.create(model=server.model, input=["one", "two"])  # base64, unpacked by the client
    for first, second in zip(plain.data, packed.data, strict=True):
        assert first.embedding == pytest.approx(second.embedding, abs=1e-6)
        assert sum(number * number for number in first.embedding) == pytest.approx(1.0, abs=1e-5)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
    short = client.embeddings.create(model=server.model, input=[[1, 2, 3]], dimensions=2)
    assert len(short.data[0].embedding) == 2
