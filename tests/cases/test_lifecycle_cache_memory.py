"""Public cases, section 2.7: lifecycle, cache, memory."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from xllm_script_model import EOS, SLOW, script

from support.server_process import ServerProcess, eventually

BLOCK = 16


def text_of(process: ServerProcess, prompt: str, **fields: Any) -> str:
    """Return a completion's text."""
    answer = process.complete(prompt, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_b63_fifty_clients_that_hang_up(server: ServerProcess) -> None:
    draw = random.Random(63)

    def leave(number: int) -> None:
        body = {"prompt": f"{number} {script(SLOW, *[b'x'] * 100)}", "max_tokens": 100, "stream": number % 2 == 0}
        after = draw.choice([0, 1, 500, 2000]) if body["stream"] else 0
        server.hang_up_during("/v1/completions", body, after_bytes=after)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(50)))
    eventually(server.is_idle)
    server.assert_alive()


def test_b64_mass_abort_while_waiting_under_preemption(small_server: ServerProcess) -> None:
    def leave(number: int) -> None:
        body = {
            "prompt": f"{number:02d}{script(SLOW, *[b'x'] * 30)}",
            "max_tokens": 60,
            "ignore_eos": True,
            "stream": True,
        }
        small_server.hang_up_during("/v1/completions", body, after_bytes=1 if number % 8 == 0 else 0)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(leave, range(64)))
    eventually(small_server.is_idle)
    small_server.assert_alive()


def test_b66_the_same_id_twice(server: ServerProcess) -> None:
    def ask(word: str) -> tuple[str, str, str]:
        answer = server.client.post(
            "/v1/completions",
            json={"prompt": script(SLOW, *word.encode()), "max_tokens": 30, "request_id": "twin"},
            headers={"X-Request-Id": "twin"},
        )
        return answer.json()["choices"][0]["text"], answer.headers["x-request-id"], answer.json()["id"]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, ["first answer", "second answer"])
    assert first == ("first answer", "twin", "cmpl-twin")
    assert second == ("second answer", "twin", "cmpl-twin")


def test_b66_a_long_id(server: ServerProcess) -> None:
    answer = server.complete("x", request_id="x" * 1_000_000)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "request_id"
    answer = server.client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "x" * 1000})
    assert answer.status_code == 400
    head = f"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: {'x' * 1_000_000}\r\n\r\n".encode()
    assert b" 200 " not in server.raw(head)
    server.assert_alive()


def test_b67_a_preempted_answer_is_complete(server: ServerProcess, small_server: ServerProcess) -> None:
    """Two prompts of 5 blocks in a pool of 12, and answers that need 2 more each."""
    prompts = [script(SLOW, *range(40 + offset, 64 + offset)) for offset in (0, 1)]
    expected = [text_of(server, prompt) for prompt in prompts]
    assert [len(text) for text in expected] == [24, 24]
    before = small_server.metrics()["xllm:num_preemptions_total"]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            assert list(pool.map(lambda prompt: text_of(small_server, prompt, max_tokens=25), prompts)) == expected
    assert small_server.metrics()["xllm:num_preemptions_total"] > before


@pytest.mark.parametrize("length", [3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1, 4 * BLOCK])
def test_b68_a_prompt_that_is_cached_whole(server: ServerProcess, small_server: ServerProcess, length: int) -> None:
    """`small_server` also has chunks of one block, so that a chunk ends where the prompt ends."""
    for process in (server, small_server):
        tail = script(b"o", b"k")
        num_tail = process.complete(tail, max_tokens=1).json()["usage"]["prompt_tokens"]
        prompt = str(length).ljust(length - num_tail, "-") + tail
        answers = [process.complete(prompt, max_tokens=8).json() for _ in range(3)]
        assert [answer["choices"][0]["text"] for answer in answers] == ["ok"] * 3
        assert {answer["usage"]["prompt_tokens"] for answer in answers} == {length}
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert cached[1] == cached[2] > cached[0]
        assert cached[1] < length, "at least one token is computed"


def test_b74_ignore_eos_goes_on(server: ServerProcess) -> None:
    prompt = script(b"a", b"b", b"c", EOS, b"d")
    assert text_of(server, prompt) == "abc"
    body = server.complete(prompt, ignore_eos=True, max_tokens=64).json()
    assert body["usage"]["completion_tokens"] == 64
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["text"] == "abcd"
    stopped = server.complete(prompt, ignore_eos=True, max_tokens=64, stop_token_ids=[ord("b")]).json()
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == ("a", "stop")
