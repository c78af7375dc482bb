"""Public cases, section 2.3: validation. After each, the next request works."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from xllm_script_model import TOKENS, script

from support.server_process import ServerProcess

MAX_MODEL_LEN = 4096


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the error object of an answer that must be one."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize("prompt", ["", [""], [], [[]]])
def test_b24_empty_prompts(server: ServerProcess, prompt: Any) -> None:
    assert refusal(server.complete(prompt))["param"] == "prompt"


def test_b24_no_messages(server: ServerProcess) -> None:
    assert refusal(server.chat([]))["param"] == "messages"


@pytest.mark.parametrize(("length", "is_served"), [(4095, True), (4096, False), (4097, False), (8192, False)])
def test_b25_prompts_around_the_limit(server: ServerProcess, length: int, is_served: bool) -> None:
    answer = server.complete("Z" * length, max_tokens=1)
    if is_served:
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] == length
    else:
        error = refusal(answer)
        assert str(length) in error["message"]
        assert str(MAX_MODEL_LEN) in error["message"]
        assert error["code"] == "context_length_exceeded"


def test_b25_prompt_and_output_together(server: ServerProcess) -> None:
    error = refusal(server.complete("Z" * 4000, max_tokens=97))
    assert "4000" in error["message"]
    assert "97" in error["message"]
    assert server.complete("Z" * 4000, max_tokens=96).status_code == 200


def test_b26_nothing_is_cut_silently(server: ServerProcess) -> None:
    canary = script("canary")
    assert refusal(server.complete("Z" * 5000 + canary, max_tokens=8))
    fits = server.complete("Z" * 4000 + canary, max_tokens=8).json()
    assert fits["choices"][0]["text"] == "canary"
    assert fits["usage"]["prompt_tokens"] > 4000
    assert refusal(server.complete("x", truncate_prompt_tokens=5))["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
def test_b28_max_tokens_left_out(server: ServerProcess, fields: dict[str, Any]) -> None:
    long = script(*[b"x"] * 100)
    assert server.chat(long, **fields).json()["choices"][0]["message"]["content"] == "x" * 100
    body = server.client.post("/v1/completions", json={"prompt": long, **fields}).json()
    assert body["choices"][0]["text"] == "x" * 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"max_completion_tokens": 3}, 3), ({"max_completion_tokens": 3, "max_tokens": 5}, 3), ({"max_tokens": 5}, 5)],
)
def test_b29_max_completion_tokens(server: ServerProcess, fields: dict[str, int], expected: int) -> None:
    body = server.chat(script(*[b"x"] * 50), **fields).json()
    assert body["usage"]["completion_tokens"] == expected


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "2.5", '"1"', "true", "[1]"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "min_p"])
def test_b30_numbers_that_are_none(server: ServerProcess, field: str, value: str) -> None:
    if (field, value) == ("presence_penalty", "-1"):
        return
    body = f'{{"prompt": "x", "{field}": {value}}}'.encode()
    assert refusal(server.post("/v1/completions", body))["param"] == field


def test_b30_a_tiny_temperature_is_raised(server: ServerProcess) -> None:
    assert server.post("/v1/completions", b'{"prompt": "x", "temperature": 1e-12}').status_code == 200
    assert server.post("/v1/completions", b'{"prompt": "x", "temperature": 1e-400}').status_code == 200


@pytest.mark.parametrize("key", ["AI", str(len(TOKENS)), "-1", "1000000000", "1.5", "99999999999999999999"])
def test_b32_keys_of_logit_bias(server: ServerProcess, key: str) -> None:
    assert refusal(server.complete("x", logit_bias={key: -100}))["param"] == "logit_bias"


def test_b32_logit_bias_works(server: ServerProcess) -> None:
    assert server.complete("x", logit_bias={"65": 100}, max_tokens=1).status_code == 200


@pytest.mark.parametrize("n", [0, -1, 129, 10**6, 10**25])
def test_b33_huge_n(server: ServerProcess, n: int) -> None:
    assert refusal(server.complete("x", n=n))["param"] == "n"
    assert server.client.get("/health", timeout=1).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "x"', None),
        (b"", None),
        (b"not json", None),
        (b"[]", None),
        (b"null", None),
        (b'{"prompt": "x", "max_tokens": "many"}', "max_tokens"),
        (b'{"prompt": "x", "max_tokens": 1.5}', "max_tokens"),
        (b'{"prompt": "x", "stream": "yes"}', "stream"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"prompt": [1, "a"]}', "prompt"),
        (b"{}", "prompt"),
        (b'{"prompt": "x", "stop": {"a": 1}}', "stop"),
        (b'{"prompt": "x", "logit_bias": [1]}', "logit_bias"),
        (b'{"prompt": "x", "response_format": {"type": "xml"}}', "response_format.type"),
        (b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", None),
    ],
)
def test_b35_bodies_that_are_wrong(server: ServerProcess, body: bytes, param: str | None) -> None:
    assert refusal(server.post("/v1/completions", body))["param"] == param


def test_b35_an_unknown_role(server: ServerProcess) -> None:
    assert refusal(server.chat([{"role": "wizard", "content": "x"}]))["param"] == "messages[0].role"


def test_b35_another_content_type(server: ServerProcess) -> None:
    refusal(server.post("/v1/completions", b'{"prompt": "x"}', "text/plain"), 415)


def test_b35_a_body_of_50_megabytes(server: ServerProcess) -> None:
    body = b'{"prompt": "' + b"x" * 50_000_000 + b'"}'
    refusal(server.post("/v1/completions", body), 413)


@pytest.mark.parametrize(
    "text", ["Z" * 200_000, " " * 200_000, "7" * 200_000, "e" + "\u0301" * 100_000, "Ze \n" * 50_000]
)
def test_b37_long_runs_of_one_character(server: ServerProcess, text: str) -> None:
    assert refusal(server.complete(text))["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "template",
    [
        '{"messages": [{"role": "user", "content": "%s"}]}',
        '{"messages": [{"role": "user", "content": "x", "name": "%s"}]}',
        '{"messages": [{"role": "user", "content": "x"}], "stop": "%s"}',
        '{"messages": [{"role": "user", "content": "x"}], "model": "%s"}',
        '{"messages": [{"role": "user", "content": "x"}], "user": "%s"}',
        '{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": "%s"}}',
    ],
)
@pytest.mark.parametrize("surrogate", [r"\ud83d", r"\ude00", r"\ud83d\ud83d", r"a\ud83dz"])
def test_b38_lone_surrogates(server: ServerProcess, template: str, surrogate: str) -> None:
    refusal(server.post("/v1/chat/completions", (template % surrogate).encode()))


def test_b38_pairs_of_surrogates_are_text(server: ServerProcess) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": script("ok") + "😀"}]}).encode()
    assert rb"\ud83d\ude00" in body
    assert server.post("/v1/chat/completions", body).status_code == 200
