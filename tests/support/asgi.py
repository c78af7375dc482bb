"""Calls an ASGI app without a server: requests with any body and headers, answers in parts, clients that hang up."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    is_complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object, checked for its shape."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    def events(self) -> list[Any]:
        """The data of each server-sent event; `[DONE]` as it is."""
        events = []
        for block in self.body.decode().split("\n\n"):
            if block:
                assert block.startswith("data: "), block
                content = block.removeprefix("data: ")
                events.append(content if content == "[DONE]" else json.loads(content))
        return events


async def call(
    app: Any,
    path: str,
    content: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
    hang_up: asyncio.Event | None = None,
    answer: Answer | None = None,
    chunks: list[bytes] | None = None,
) -> Answer:
    """Make one request; its answer fills `answer`, when given, while it comes.

    Args:
        content: bytes are sent as they are, anything else as JSON.
        hang_up: set it, and the client leaves.
    """
    body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
    sent = {"content-type": "application/json"} | {k.lower(): v for k, v in (headers or {}).items()}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method or ("GET" if content is None and chunks is None else "POST"),
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    incoming = [{"type": "http.request", "body": part, "more_body": True} for part in (chunks or [body])]
    incoming[-1]["more_body"] = False
    answer = answer or Answer()
    has_left = hang_up or asyncio.Event()

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop(0)
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            if message["body"]:
                answer.parts.append(message["body"])
            answer.is_complete = not message.get("more_body", False)
        if answer.is_complete:
            has_left.set()

    await app(scope, receive, send)
    return answer
