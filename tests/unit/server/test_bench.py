"""The benchmark client against a real socket and a fake master; and its arithmetic."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from support.fake_master import FakeMaster
from support.serve_fake import serve
from xllm_server.bench.command import measure
from xllm_server.bench.http_client import HttpFailure, Target, request
from xllm_server.bench.load import RequestRecord
from xllm_server.bench.options import BenchOptions
from xllm_server.bench.prompts import WORDS, make_prompts
from xllm_server.bench.report import as_table, make_report, percentile, summarise
from xllm_server.state import ServerState


def bench(master: FakeMaster, **options: Any) -> dict[str, Any]:
    """Measure a fake server over a socket."""

    async def scenario(app: Any, _: ServerState) -> dict[str, Any]:
        config = uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="warning")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            return await measure(BenchOptions(base_url=f"http://127.0.0.1:{port}/v1", **options), {})
        finally:
            server.should_exit = True
            await task

    return serve(scenario, master, api_key="k")


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_run_counts_what_the_server_counts(endpoint: Any) -> None:
    report = bench(
        FakeMaster(b"x" * 64),
        endpoint=endpoint,
        num_prompts=10,
        concurrency=3,
        input_len=8,
        output_len=5,
        api_key="k",
        warmup=1,
    )
    assert (report["completed"], report["failed"]) == (10, 0)
    assert report["model"] == "org/fake"
    assert report["output_tokens"] == 50
    assert report["prompt_tokens"] > 0
    assert set(report["ttft_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert json.loads(json.dumps(report)) == report
    assert "10 of 10 requests" in as_table(report)


def test_failures_are_counted_and_told() -> None:
    master = FakeMaster(b"x" * 64)
    master.fail_at = 2
    report = bench(master, model="org/fake", num_prompts=4, api_key="k", input_len=1)
    assert report["failed"] == 4
    assert "The model raised." in report["errors"][0]
    assert "error:" in as_table(report)


def test_a_refusal_is_told() -> None:
    report = bench(FakeMaster(), model="org/fake", num_prompts=1, api_key="wrong", input_len=1)
    assert report["errors"] == [report["errors"][0]]
    assert "HTTP 401" in report["errors"][0]


def test_a_server_that_cuts_an_answer_short() -> None:
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n20\r\nhalf")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            parts = request(Target.of(f"http://127.0.0.1:{port}"), "/")
            assert await anext(parts) == b"hello"
            with pytest.raises(HttpFailure, match="middle"):
                await anext(parts)

    asyncio.run(run())


def test_prompts() -> None:
    assert len(set(WORDS)) == len(WORDS)
    prompts = make_prompts(20, 12, shared_prefix_len=5, seed=3)
    assert prompts == make_prompts(20, 12, shared_prefix_len=5, seed=3)
    assert prompts != make_prompts(20, 12, shared_prefix_len=5, seed=4)
    assert {len(prompt.split()) for prompt in prompts} == {12}
    assert len({tuple(prompt.split()[:5]) for prompt in prompts}) == 1
    assert len({tuple(prompt.split()) for prompt in prompts}) == 20


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_lie_between_their_neighbours(values: list[float], percent: float) -> None:
    result = percentile(values, percent)
    assert min(values) <= result <= max(values) or result == pytest.approx(min(values))
    below = sum(value < result for value in values)
    assert below <= len(values) * percent / 100 + 1


def test_figures() -> None:
    records = [
        RequestRecord(0.0, [0.1, 0.2, 0.4], 0.5, prompt_tokens=10, cached_tokens=4, completion_tokens=3),
        RequestRecord(1.0, [1.3], 1.4, prompt_tokens=10, completion_tokens=1),
        RequestRecord(2.0, [], 2.1, error="HTTP 500"),
    ]
    report = make_report(BenchOptions(model="m", num_prompts=3), records, 2.0)
    assert (report["completed"], report["failed"], report["output_tokens"]) == (2, 1, 4)
    assert (report["output_tokens_per_s"], report["total_tokens_per_s"]) == (2.0, 12.0)
    assert report["ttft_ms"]["mean"] == 200.0
    assert report["itl_ms"]["max"] == 200.0
    assert report["tpot_ms"]["mean"] == 150.0
    assert summarise([]) is None
