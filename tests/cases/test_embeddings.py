"""Public cases, section 2.8: embeddings."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import pytest

from support.server_process import ServerProcess


def vectors(server: ServerProcess, sent: Any, **fields: Any) -> list[Any]:
    """Return what stands for each input."""
    answer = server.client.post("/v1/embeddings", json={"input": sent, **fields})
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


@pytest.mark.parametrize("sent", ["hello", ["a", "bc"], [72, 105], [[72, 105], [33]]])
def test_b81_base64_is_the_bytes_of_the_floats(server: ServerProcess, sent: Any) -> None:
    floats = vectors(server, sent, encoding_format="float")
    assert floats == vectors(server, sent)
    for text, numbers in zip(vectors(server, sent, encoding_format="base64"), floats, strict=True):
        assert list(struct.unpack(f"<{len(numbers)}f", base64.b64decode(text))) == pytest.approx(numbers)
        assert math.fsum(number * number for number in numbers) == pytest.approx(1.0)


def test_b81_token_arrays_mean_what_their_text_means(server: ServerProcess) -> None:
    assert vectors(server, [72, 105]) == vectors(server, "Hi")


@pytest.mark.parametrize("encoding", ["xml", "", 1])
def test_b81_an_unknown_encoding_is_refused(server: ServerProcess, encoding: Any) -> None:
    answer = server.client.post("/v1/embeddings", json={"input": "x", "encoding_format": encoding})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "encoding_format"
