"""Pausing, what is not there yet, pages of other sites, the request log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_server.state import ServerState

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def ask(path: str, content: Any = None, *, options: dict[str, Any] | None = None, **how: Any) -> Answer:
    """Make one request."""
    return serve(lambda app, _: call(app, path, content, **how), FakeMaster(), **(options or {}))


def test_pause_and_resume() -> None:
    master = FakeMaster()

    async def scenario(app: Any, _: ServerState) -> None:
        assert (await call(app, "/pause", b"")).json() == {"status": "paused"}
        assert (await call(app, "/resume", b"")).json() == {"status": "running"}
        assert (await call(app, "/pause", {"mode": "abort"})).json() == {"status": "paused"}
        wrong = await call(app, "/pause", {"mode": "now"})
        assert (wrong.status, wrong.error["param"]) == (400, "mode")

    serve(scenario, master)
    assert master.seen_pauses == ["keep", "abort"]


def test_a_pause_that_is_taken_back_answers() -> None:
    master = FakeMaster()
    master.pause = lambda mode: None  # type: ignore[method-assign]

    async def scenario(app: Any, _: ServerState) -> None:
        pausing = asyncio.create_task(call(app, "/pause", b""))
        await asyncio.sleep(0.05)
        assert not pausing.done()
        assert (await call(app, "/resume", b"")).json() == {"status": "running"}
        assert (await pausing).json() == {"status": "running"}

    serve(scenario, master)


@pytest.mark.parametrize("path", ["/sleep", "/wakeup"])
def test_what_is_not_there_yet_says_so(path: str) -> None:
    answer = ask(path, method="POST")
    assert (answer.status, answer.error["code"]) == (501, "unimplemented")


def test_the_index_of_models() -> None:
    assert ask("/v2/repository/index", {}).json()[0]["name"] == "org/fake"


def test_pages_of_other_sites_are_refused() -> None:
    own = {"Origin": "http://localhost:8000", "Host": "localhost:8000"}
    other = {"Origin": "https://evil.example", "Host": "localhost:8000"}
    assert ask(CHAT, HELLO, headers=own).status == 200
    for origin in ("https://evil.example", "null", "http://localhost:9000", "http://[x"):
        answer = ask(CHAT, HELLO, headers=other | {"Origin": origin})
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
    allowed = {"allowed_origins": "https://good.example, https://evil.example/"}
    answer = ask(CHAT, HELLO, headers=other, options=allowed)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://evil.example")
    assert ask(CHAT, HELLO, headers=other | {"Origin": "https://third.example"}, options=allowed).status == 403
    answer = ask(CHAT, HELLO, headers=other, options={"allowed_origins": "*"})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")


def test_the_log_tells_sizes_and_no_contents(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "xllm_server.requests"):
        ask(CHAT, HELLO | {"stream": True}, options={"log_requests": True}, headers={"X-Request-Id": "r1"})
        ask("/none", options={"log_requests": True})
    first, second = [record for record in caplog.records if record.name == "xllm_server.requests"]
    assert first.fields | {"seconds": 0, "response_bytes": 0} == {
        "request_id": "r1",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "seconds": 0,
        "response_bytes": 0,
        "prompt_tokens": 8,
        "cached_tokens": 0,
        "completion_tokens": 6,
    }
    assert (second.fields["status"], second.fields["path"]) == (404, "/none")
    assert "hello" not in caplog.text
