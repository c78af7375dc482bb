"""Public cases, section 2.4: chat templates."""

from __future__ import annotations

from typing import Any

import pytest
from xllm_script_model import script

from support.server_process import ServerProcess


def turns(*roles: str) -> list[dict[str, Any]]:
    """Return messages of these roles; the last asks the script model to say ok."""
    messages = [{"role": role, "content": "x"} for role in roles]
    messages[-1]["content"] = script("ok")
    return messages


@pytest.mark.parametrize("role", ["system", "developer"])
def test_b40_a_later_system_message(server: ServerProcess, strict_server: ServerProcess, role: str) -> None:
    messages = turns("system", "user", "assistant", role, "user")
    assert server.chat(messages).json()["choices"][0]["message"]["content"] == "ok"
    refused = strict_server.chat(messages)
    assert refused.status_code == 400
    assert "System message must be at the beginning" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "messages"


def test_b41_the_template_s_own_words_reach_the_client(strict_server: ServerProcess) -> None:
    refused = strict_server.chat(turns("user", "user"))
    assert refused.status_code == 400
    assert "Roles must alternate" in refused.json()["error"]["message"]
    assert strict_server.chat(turns("user", "assistant", "user")).status_code == 200


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_b43_tool_calls_without_content(server: ServerProcess, strict_server: ServerProcess, content: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": script("ok")},
    ]
    for process in (server, strict_server):
        answer = process.chat(messages)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "fields", [{"chat_template": LOOPS}, {"chat_template_kwargs": {"chat_template": LOOPS}}], ids=["field", "nested"]
)
def test_b45_a_template_in_a_request(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = server.client.post("/v1/chat/completions", json={"messages": turns("user"), **fields}, timeout=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))
    assert server.chat(turns("user"), chat_template_kwargs={"enable_thinking": False}).status_code == 200


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, {"type": "text"}, {}]
)
def test_parts_that_are_no_text_are_refused(server: ServerProcess, part: dict[str, Any]) -> None:
    answer = server.chat([{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "messages[0].content[1]" in answer.json()["error"]["message"]
