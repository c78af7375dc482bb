"""/tokenize, /detokenize and /v1/sample over a master that plays a script."""

from __future__ import annotations

from typing import Any

import pytest

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve


def ask(path: str, content: Any, master: FakeMaster | None = None, **how: Any) -> Answer:
    """Make one request."""
    return serve(lambda app, _: call(app, path, content, **how), master or FakeMaster())


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_text_there_and_back(prefix: str) -> None:
    answer = ask(f"{prefix}/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"],
    }
    assert ask(f"{prefix}/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "hé"}


def test_a_conversation_is_tokenised_as_a_chat_would_be() -> None:
    answer = ask("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()
    assert bytes(answer["tokens"]) == b"<user>hi"
    assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/v1/sample", {"prompt": "", "selector": {"value": "x"}}, "prompt"),
        ("/v1/sample", {"prompt": "x", "selector": {"value": ""}}, "selector.value"),
        ("/v1/sample", {"prompt": "x", "selector": {"value": "xy"}}, "selector.value"),
        ("/v1/sample", {"prompt": "x", "selector": {"type": "regex", "value": "x"}}, "selector.type"),
        ("/v1/sample", {"prompt": "x", "selector": {"value": "x"}, "logprobs": 0}, "logprobs"),
        ("/v1/sample", {"prompt": "x", "selector": {"value": "x"}, "logprobs": 6}, "logprobs"),
        ("/v1/sample", {"prompt": "x", "selector": {"value": "x"}, "stream": True}, "stream"),
        ("/v1/sample", {"prompt": "x"}, "selector"),
    ],
)
def test_what_is_refused(path: str, content: Any, param: str) -> None:
    answer = ask(path, content)
    assert answer.status == 400
    assert answer.error["param"] == param


def test_every_place_of_the_marker_is_a_slot() -> None:
    answer = ask("/v1/sample", {"prompt": "#a#b", "selector": {"type": "literal", "value": "#"}, "logprobs": 1}).json()
    assert answer["object"] == "sample_completion"
    first, second = answer["choices"]
    assert (first["index"], first["text"], first["finish_reason"]) == (0, "", "empty_logprobs")
    assert (second["index"], second["text"], second["finish_reason"]) == (1, "A", "selector_match")
    assert second["logprobs"] == {"tokens": ["A"], "token_ids": [65], "token_logprobs": [-0.5]}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 0)


def test_no_place_is_no_error() -> None:
    answer = ask("/v1/sample", {"prompt": "ab", "selector": {"value": "#"}})
    assert (answer.status, answer.json()["choices"]) == (200, [])


def test_the_deadline_header_shortens_the_bodys_timeout() -> None:
    master = FakeMaster()
    body = {"prompt": "x", "timeout": 1000}
    assert ask("/v1/completions", body, master, headers={"X-Request-Timeout": "5"}).status == 200
    deadline_s = master.seen[-1][2]["deadline_s"]
    master = FakeMaster()
    assert ask("/v1/completions", body, master).status == 200
    assert master.seen[-1][2]["deadline_s"] > deadline_s + 900
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        answer = ask("/v1/completions", body, headers={"X-Request-Timeout": wrong})
        assert (answer.status, answer.error["param"]) == (400, "X-Request-Timeout")


def test_objectives_reach_the_engine() -> None:
    master = FakeMaster()
    assert ask("/v1/completions", {"prompt": "x", "ttft_slo_ms": 200, "tpot_weight": 2}, master).status == 200
    objectives = master.seen[-1][2]["objectives"]
    assert (objectives.ttft_slo_ms, objectives.tpot_slo_ms, objectives.tpot_weight) == (200, 0, 2)
    assert ask("/v1/completions", {"prompt": "x", "ttft_slo_ms": -1}).error["param"] == "ttft_slo_ms"
