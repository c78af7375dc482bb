"""/metrics parses, and its identities hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.asgi import Answer, call
from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_server.metrics import ServerMetrics
from xllm_server.state import ServerState

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


async def scrape(app: Any) -> dict[str, float]:
    """Return sample -> value; labels other than the model's are part of the name."""
    answer = await call(app, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
            values[",".join([sample.name, *labels])] = sample.value
    return values


def test_finish_reasons_add_up() -> None:
    master = FakeMaster()

    async def scenario(app: Any, _: ServerState) -> None:
        await call(app, CHAT, HELLO)
        await call(app, CHAT, HELLO | {"max_tokens": 2, "stream": True})
        await call(app, CHAT, HELLO | {"n": 0})
        await call(app, "/v1/completions", {"prompt": ["a", "b"]})
        master.fail_at = 1
        await call(app, CHAT, HELLO | {"stream": True})
        master.fail_at = None
        master.hold_at = 1
        hang_up, answer = asyncio.Event(), Answer()
        task = asyncio.create_task(call(app, CHAT, HELLO | {"stream": True}, hang_up=hang_up, answer=answer))
        while not (master.is_holding and answer.parts):
            await asyncio.sleep(0.001)
        assert (await scrape(app))["xllm:num_requests_in_flight"] == 1
        hang_up.set()
        await task
        values = await scrape(app)
        reasons = {
            reason: values[f"xllm:request_success_total,{reason}"] for reason in ("stop", "length", "abort", "error")
        }
        assert reasons == {"stop": 3, "length": 1, "abort": 1, "error": 1}
        assert values["xllm:requests_total"] == sum(reasons.values())
        assert values["xllm:num_requests_in_flight"] == 0
        assert values["xllm:request_generation_tokens_sum"] == 6 + 2 + 6 + 6 + 1
        assert values[f"xllm:http_requests_total,400,POST,{CHAT}"] == 1
        assert values[f"xllm:http_requests_total,200,POST,{CHAT}"] == 4
        assert values["xllm:time_to_first_token_seconds_count"] == 5

    serve(scenario, master)


def test_engine_numbers_are_read_at_each_scrape() -> None:
    master = FakeMaster()
    master.stats.num_free_blocks, master.stats.num_cached_blocks = 32, 16
    master.stats.num_generated_tokens, master.stats.num_preemptions = 7, 3

    async def scenario(app: Any, _: ServerState) -> None:
        values = await scrape(app)
        assert values["xllm:kv_cache_usage_perc"] == 0.25
        assert values["xllm:generation_tokens_total"] == 7
        assert values["xllm:num_preemptions_total"] == 3
        assert values["xllm:up"] == 1
        master.die("gone")
        assert (await scrape(app))["xllm:up"] == 0

    serve(scenario, master)


def test_unknown_paths_share_one_label() -> None:
    async def scenario(app: Any, _: ServerState) -> None:
        for number in range(5):
            await call(app, f"/nothing/{number}")
        values = await scrape(app)
        assert [name for name in values if name.startswith("xllm:http_requests_total")] == [
            "xllm:http_requests_total,404,GET,other"
        ]

    serve(scenario, FakeMaster())


def test_a_metric_that_fails_does_not_fail_a_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: Any) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    monkeypatch.setattr(ServerMetrics, "_observe_timings", explode)

    async def scenario(app: Any, _: ServerState) -> None:
        for _ in range(2):
            assert (await call(app, CHAT, HELLO)).status == 200

    serve(scenario, FakeMaster())
    assert "could not be recorded" in caplog.text
