"""/v1/embeddings, /v1/rerank and /v1/score over a master whose vectors are (number of tokens, 1, 2, 2)."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_runtime.master.scoring import NoScorer


def ask(path: str, content: Any, master: FakeMaster | None = None, **how: Any) -> Answer:
    """Make one request."""
    return serve(lambda app, _: call(app, path, content, **how), master or FakeMaster())


def vector(num_tokens: int, dimensions: int = 4) -> np.ndarray:
    pooled = np.array([num_tokens, 1, 2, 2], np.float32)[:dimensions]
    return pooled / np.linalg.norm(pooled)


@pytest.mark.parametrize(
    ("sent", "lengths"),
    [("héllo", [6]), (["a", "bcd"], [1, 3]), ([7, 8, 9], [3]), ([[7], [8, 9]], [1, 2])],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_every_kind_of_input(path: str, sent: Any, lengths: list[int]) -> None:
    answer = ask(path, {"input": sent, "model": "org/fake", "user": "me"}).json()
    assert answer["object"] == "list"
    assert answer["model"] == "org/fake"
    assert [entry["object"] for entry in answer["data"]] == ["embedding"] * len(lengths)
    assert [entry["index"] for entry in answer["data"]] == list(range(len(lengths)))
    for entry, length in zip(answer["data"], lengths, strict=True):
        np.testing.assert_allclose(entry["embedding"], vector(length), rtol=1e-6)
    assert answer["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}


def test_base64_is_little_endian_float32() -> None:
    content = {"input": ["abc", "d"], "encoding_format": "base64", "dimensions": 3}
    first, _ = ask("/v1/embeddings", content).json()["data"]
    numbers = np.frombuffer(base64.b64decode(first["embedding"]), "<f4")
    np.testing.assert_allclose(numbers, vector(3, 3), rtol=1e-6)


def test_texts_are_cut_where_that_is_asked_for() -> None:
    master = FakeMaster(max_model_len=8)
    for limit, num_tokens in ((3, 3), (-1, 8), (100, 8)):
        answer = ask(
            "/v1/embeddings", {"input": "abcdefghijkl", "truncate_prompt_tokens": limit}, FakeMaster(max_model_len=8)
        )
        assert answer.json()["usage"]["prompt_tokens"] == num_tokens
    refused = ask("/v1/embeddings", {"input": "abcdefghijkl"}, master)
    assert refused.status == 400
    assert refused.error["param"] == "input"


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input"),
        ("/v1/embeddings", {"input": ["a", 1]}, "input"),
        ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/embeddings", {"input": [257]}, "input"),
        ("/v1/embeddings", {"input": ["x"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": 5}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "binary"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "stream": True}, "stream"),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a", ""]}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": [{"title": "a"}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_what_is_refused(path: str, content: Any, param: str) -> None:
    answer = ask(path, content)
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_back_by_relevance(path: str) -> None:
    documents = ["x" * 40, "abcd", {"text": "abc"}, "ab"]
    answer = ask(path, {"query": "xyz", "documents": documents, "top_n": 3}).json()
    assert [result["index"] for result in answer["results"]] == [2, 1, 3]
    assert answer["results"][0]["document"] == {"text": "abc"}
    assert answer["results"][0]["relevance_score"] == pytest.approx(1.0)
    assert answer["results"][1]["relevance_score"] == pytest.approx(float(vector(3) @ vector(4)))
    assert answer["usage"]["prompt_tokens"] == 3 + 40 + 4 + 3 + 2
    plain = ask(path, {"query": "xyz", "documents": documents, "return_documents": False}).json()["results"]
    assert len(plain) == 4
    assert all("document" not in result for result in plain)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_are_scored_in_order(path: str) -> None:
    one = ask(path, {"text_1": "a", "text_2": ["b", "cc"]}).json()
    assert [entry["object"] for entry in one["data"]] == ["score"] * 2
    assert one["data"][1]["score"] == pytest.approx(float(vector(1) @ vector(2)))
    pairs = ask(path, {"text_1": ["a", "bb"], "text_2": ["ccc", "dd"]}).json()["data"]
    assert [entry["index"] for entry in pairs] == [0, 1]
    assert pairs[0]["score"] == pytest.approx(float(vector(1) @ vector(3)))
    assert pairs[1]["score"] == pytest.approx(1.0)


def test_a_model_that_cannot_score_says_so() -> None:
    for path, content in (
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ):
        master = FakeMaster()
        master.scorer = NoScorer("This model has 3 labels; one that scores pairs has 1.")
        answer = ask(path, content, master)
        assert answer.status == 400
        assert "3 labels" in answer.error["message"]


def test_more_inputs_than_may_wait_take_turns() -> None:
    class NarrowMaster(FakeMaster):
        """Takes three requests at a time."""

        def submit(self, prepared: Any, on_output: Any) -> None:
            self.is_full = self.num_in_flight >= 3
            super().submit(prepared, on_output)

    answer = ask("/v1/embeddings", {"input": ["abc"] * 40}, NarrowMaster())
    assert len(answer.json()["data"]) == 40
