"""Faults that users of other servers have reported about pictures, each as what a client sees."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.odd_images import encoded
from support.server_process import ServerProcess
from support.tiny_vision import picture
from support.vision_cases import reference


@pytest.fixture(scope="module")
def seeing_server() -> Iterator[ServerProcess]:
    with ServerProcess("--dtype", "float32", "--threads", "1", model=reference("qwen2_vl").folder) as started:
        yield started


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine, and what came in there; an open connection alone counts as an empty entry."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1)
                    try:
                        received.append(connection.recv(1000))
                    except TimeoutError:
                        received.append(b"")

        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1], received
        server.shutdown(socket.SHUT_RDWR)


def ask_about(server: ServerProcess, url: str) -> Any:
    """Ask the same question about a picture, greedily."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": True,
    }
    return server.post("/v1/chat/completions", json.dumps(body).encode())


def as_url(image: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(encoded(image, 'PNG')).decode()}"


def test_b70_the_same_text_about_another_picture_is_no_hit(seeing_server: ServerProcess) -> None:
    one, other = (ask_about(seeing_server, as_url(picture(seed, 112, 112))).json() for seed in (1, 2))
    again = ask_about(seeing_server, as_url(picture(1, 112, 112))).json()
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (one, other, again)]
    assert cached[0] == 0
    assert cached[1] < 16, "no more than what stands before the picture"
    assert cached[2] > cached[1]
    assert one["choices"][0]["logprobs"] != other["choices"][0]["logprobs"], "the other picture was looked at"
    assert one["choices"][0]["message"] == again["choices"][0]["message"]


def test_b82_no_byte_reaches_this_machine_or_a_neighbour(
    seeing_server: ServerProcess, listener: tuple[int, list[bytes]]
) -> None:
    port, received = listener
    urls = [
        f"http://127.0.0.1:{port}/x.png",
        f"http://localhost:{port}/x.png",
        f"http://[::ffff:127.0.0.1]:{port}/x.png",
        f"http://2130706433:{port}/x.png",
        f"http://127.1:{port}/x.png",
        f"http://0.0.0.0:{port}/x.png",
        f"http://x@127.0.0.1:{port}/x.png",
        "http://[::1]/x.png",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        f"gopher://127.0.0.1:{port}/x.png",
    ]
    for url in urls:
        response = ask_about(seeing_server, url)
        assert response.status_code == 400, url
        assert response.json()["error"]["param"] == "messages"
    assert not received
