"""What holds for every route: bodies, keys, ids, limits, unknown paths, models, health, the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_framework.errors import ShuttingDown
from xllm_server.state import ServerState

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def ask(path: str, content: Any = None, /, *, options: dict[str, Any] | None = None, **how: Any) -> Answer:
    """Make one request to a server with these options."""
    return serve(lambda app, _: call(app, path, content, **how), FakeMaster(), **(options or {}))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'{"messages": [{"role": "user", "content": "x"}', None),
        (b"[]", None),
        (b'"text"', None),
        (b"\xff\xfe{}", None),
        (b'{"messages": [], "temperature": NaN}', "temperature"),
        (b'{"messages": [], "temperature": Infinity}', "temperature"),
        (b'{"messages": [], "temperature": -1e999}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "content"),
        (b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", None),
        (b'{"messages": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", None),
    ],
)
def test_bodies_that_are_no_json(body: bytes, param: str | None) -> None:
    answer = ask(CHAT, body)
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types(content_type: str) -> None:
    answer = ask(CHAT, HELLO, headers={"Content-Type": content_type})
    assert answer.status == 415
    assert answer.error["param"] == "Content-Type"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_ways_to_say_json(content_type: str) -> None:
    assert ask(CHAT, HELLO, headers={"Content-Type": content_type}).status == 200


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "3000"}, {"Content-Length": "1"}])
def test_a_large_body_is_counted_as_it_comes(headers: dict[str, str]) -> None:
    answer = ask(CHAT, options={"max_body_bytes": 1000}, chunks=[b" " * 600] * 5, headers=headers)
    assert answer.status == 413
    assert "1000" in answer.error["message"]


def test_a_huge_body_is_refused_without_reading_it() -> None:
    answer = ask(CHAT, options={"max_body_bytes": 1000}, chunks=[b"x"], headers={"Content-Length": "9999999999"})
    assert answer.status == 413


def test_a_body_in_many_pieces_is_whole() -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert ask(CHAT, chunks=[bytes([byte]) for byte in body]).status == 200


def test_a_large_body_is_served() -> None:
    content = {"prompt": "x" * 4000, "user": "y" * 100_000}
    assert ask("/v1/completions", content).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/version", "/v1/models", "/v1/models/org/fake", "/openapi.json", "/no"]
)
def test_every_route_but_health_asks_for_the_key(path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer é"}):
        answer = ask(
            path, options={"api_key": "secret"}, headers={k: v.encode().decode("latin-1") for k, v in headers.items()}
        )
        assert answer.status == 401
        assert answer.error["code"] == "invalid_api_key"
    answer = ask(path, options={"api_key": "secret"}, headers={"Authorization": "Bearer secret"})
    assert answer.status != 401


def test_health_asks_for_no_key() -> None:
    assert ask("/health", options={"api_key": "secret"}).status == 200


@pytest.mark.parametrize("model", ["gpt-4", "", "org"])
def test_another_model_is_not_found(model: str) -> None:
    answer = ask(CHAT, HELLO | {"model": model})
    assert answer.status == 404
    assert (answer.error["param"], answer.error["code"]) == ("model", "model_not_found")


def test_models() -> None:
    listed = ask("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["org/fake"]
    assert ask("/v1/models/org/fake").json() == listed["data"][0] | {
        "created": ask("/v1/models").json()["data"][0]["created"]
    }
    assert ask("/v1/models/org").error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/v2/x", "GET", 404), (CHAT, "GET", 405), ("/health", "POST", 405)]
)
def test_unknown_routes_have_the_error_object(path: str, method: str, status: int) -> None:
    answer = ask(path, method=method)
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"


def test_request_ids() -> None:
    assert ask("/health", headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    assert len(ask("/health").headers["x-request-id"]) == 32
    answer = ask(CHAT, HELLO | {"request_id": "from-body"}, headers={"X-Request-Id": "from-header"})
    assert answer.headers["x-request-id"] == "from-header"
    assert answer.json()["id"] == "chatcmpl-from-header"
    answer = ask(CHAT, HELLO | {"request_id": "from-body"})
    assert answer.headers["x-request-id"] == "from-body"
    assert answer.json()["id"] == "chatcmpl-from-body"


@pytest.mark.parametrize("request_id", ["x" * 257, "", "a\tb", "\u00e9"])
def test_wrong_request_ids(request_id: str) -> None:
    answer = ask("/health", headers={"X-Request-Id": request_id.encode().decode("latin-1")})
    assert answer.status == 400
    assert answer.error["param"] == "X-Request-Id"


def test_too_many_requests_at_once() -> None:
    master = FakeMaster()
    master.hold_at = 0

    async def scenario(app: Any, _: ServerState) -> None:
        running = [asyncio.create_task(call(app, CHAT, HELLO)) for _ in range(2)]
        while not master.is_holding:
            await asyncio.sleep(0.001)
        answer = await call(app, CHAT, HELLO)
        assert answer.status == 429
        assert answer.headers["retry-after"] == "1"
        assert (await call(app, "/health")).status == 200
        master.hold_at = None
        assert [task.status for task in await asyncio.gather(*running)] == [200, 200]
        assert (await call(app, CHAT, HELLO)).status == 200

    serve(scenario, master, max_concurrent_requests=2)


def test_a_full_queue() -> None:
    master = FakeMaster()
    master.is_full = True
    answer = serve(lambda app, _: call(app, CHAT, HELLO), master)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "7"


def test_one_refused_prompt_cancels_the_others() -> None:
    master = FakeMaster()
    submit = master.submit

    def submit_two(*arguments: Any) -> None:
        if master.num_in_flight == 2:
            raise ShuttingDown("No more.")
        submit(*arguments)

    master.submit = submit_two  # type: ignore[method-assign]
    master.hold_at = 0
    answer = serve(lambda app, _: call(app, "/v1/completions", {"prompt": ["a", "b", "c"]}), master)
    assert answer.status == 503
    assert len(master.cancelled) == 2


def test_prompts_of_one_request_take_turns_where_the_queue_is_full_of_them() -> None:
    master = FakeMaster()
    submit = master.submit

    def submit_one_at_a_time(*arguments: Any) -> None:
        master.is_full = master.num_in_flight == 1
        submit(*arguments)

    master.submit = submit_one_at_a_time  # type: ignore[method-assign]
    answer = serve(lambda app, _: call(app, "/v1/completions", {"prompt": ["a", "b", "c"]}), master)
    assert answer.status == 200
    assert len(answer.json()["choices"]) == 3


def test_draining_refuses_new_requests_and_serves_the_running() -> None:
    master = FakeMaster()
    master.hold_at = 2

    async def scenario(app: Any, state: ServerState) -> None:
        running = asyncio.create_task(call(app, CHAT, HELLO | {"stream": True}))
        while not master.is_holding:
            await asyncio.sleep(0.001)
        state.admission.start_draining()
        late = await call(app, CHAT, HELLO)
        assert late.status == 503
        assert "retry-after" in late.headers
        assert (await call(app, "/health")).status == 503
        assert not await state.admission.wait_idle(0.01)
        master.hold_at = None
        assert (await running).events()[-1] == "[DONE]"
        assert await state.admission.wait_idle(1)

    serve(scenario, master)


def test_health_does_not_wait_for_the_tokenizer() -> None:
    master = FakeMaster()
    master.prepare_delay_s = 0.2

    async def scenario(app: Any, _: ServerState) -> None:
        running = [asyncio.create_task(call(app, CHAT, HELLO)) for _ in range(4)]
        await asyncio.sleep(0.02)
        assert (await call(app, "/health")).status == 200
        assert not any(task.done() for task in running)
        await asyncio.gather(*running)

    serve(scenario, master)


def test_the_document_describes_the_request_types() -> None:
    document = ask("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["ChatCompletionRequest"]["properties"]["temperature"]
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}


def test_a_fault_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    master = FakeMaster()

    def explode(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret path")

    master.prepare_chat = explode  # type: ignore[method-assign, assignment]

    async def scenario(app: Any, _: ServerState) -> Answer:
        answer = Answer()
        with pytest.raises(RuntimeError):
            await call(app, CHAT, HELLO, answer=answer)
        return answer

    answer = serve(scenario, master)
    assert answer.status == 500
    assert "secret" not in answer.error["message"]
