"""Public cases, section 2.2: log-probabilities, echo, seeds. Seeds need a model that draws: a tiny random Llama."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from xllm_script_model import script

from support.server_process import ServerProcess
from support.tiny_checkpoints import tiny_checkpoint


@pytest.fixture(scope="module")
def drawing_server() -> Iterator[ServerProcess]:
    """A tiny random Llama."""
    with ServerProcess(model=tiny_checkpoint("llama")) as process:
        yield process
        process.assert_alive()


def test_b16_logprobs_alone_have_the_shape_of_chats(server: ServerProcess) -> None:
    content = server.chat(script("ok"), logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["o", "k"]
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["top_logprobs"] == []
        assert entry["bytes"] == list(entry["token"].encode())
        assert entry["logprob"] <= 0


def test_b17_echo_with_logprobs_and_top_k_1(drawing_server: ServerProcess) -> None:
    answer = drawing_server.complete(
        "hello", echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=4, ignore_eos=True
    )
    assert answer.status_code == 200
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"])
    assert logprobs["tokens"][:5] == list("hello")
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for token, logprob, top in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert math.isfinite(logprob)
        assert top[token] == logprob


def test_b18_echo_of_a_prompt_and_nothing_more(server: ServerProcess, drawing_server: ServerProcess) -> None:
    for process in (server, drawing_server):
        body = process.complete("score me", echo=True, max_tokens=0, logprobs=0).json()
        choice = body["choices"][0]
        assert choice["text"] == "score me"
        assert body["usage"]["completion_tokens"] == 0
        assert "".join(choice["logprobs"]["tokens"]) == "score me"
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert all(math.isfinite(value) for value in choice["logprobs"]["token_logprobs"][1:])
        assert choice["logprobs"]["text_offset"] == list(range(8))
        process.assert_alive()


def draw(process: ServerProcess, **fields: Any) -> str:
    """Return a sampled text."""
    options = {"temperature": 1.5, "max_tokens": 24, "ignore_eos": True} | fields
    return str(process.complete("Once upon", **options).json()["choices"][0]["text"])


def test_b21_seed_zero_is_a_seed(drawing_server: ServerProcess) -> None:
    assert draw(drawing_server, seed=0) == draw(drawing_server, seed=0)
    assert draw(drawing_server, seed=0) != draw(drawing_server, seed=1)


def test_b22_a_seeded_request_does_not_see_its_neighbours(drawing_server: ServerProcess) -> None:
    alone = draw(drawing_server, seed=7)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            neighbour = pool.submit(draw, drawing_server)
            assert pool.submit(draw, drawing_server, seed=7).result() == alone
            neighbour.result()
