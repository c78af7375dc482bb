"""Each generating request has a span with its phases under it, in the caller's trace."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.asgi import call
from support.fake_master import FakeMaster
from xllm_framework.config import ServiceConfig
from xllm_framework.errors import InvalidConfig
from xllm_server import launch
from xllm_server.app import build_app
from xllm_server.state import ServerState
from xllm_server.tracing import RequestTracer

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0.5}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans_of(*requests: tuple[str, dict[str, Any] | None, dict[str, str]], fail_at: int | None = None) -> list[Any]:
    """Return the spans of (path, body, headers), which are served one after the other."""
    exporter = InMemorySpanExporter()
    master = FakeMaster()
    master.fail_at = fail_at

    async def run() -> None:
        tracer = RequestTracer(exporter, master.model_name, is_batched=False)
        state = ServerState.create(master, ServiceConfig(), tracer=tracer)
        app = build_app(state)
        for path, body, headers in requests:
            await call(app, path, body, headers=headers)
        state.executor.shutdown()
        tracer.close()

    try:
        asyncio.run(run())
    finally:
        master.close()
    return list(exporter.get_finished_spans())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_has_a_span_with_its_phases(is_streamed: bool) -> None:
    spans = spans_of((CHAT, HELLO | {"stream": is_streamed}, {"traceparent": PARENT}))
    *phases, request = spans
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert request.name == "chat org/fake"
    assert request.context.trace_id == int(PARENT.split("-")[1], 16)
    assert request.parent.span_id == int(PARENT.split("-")[2], 16)
    assert {span.parent.span_id for span in phases} == {request.context.span_id}
    for earlier, later in itertools.pairwise(phases):
        assert earlier.start_time <= earlier.end_time == later.start_time
    attributes = dict(request.attributes)
    assert attributes["gen_ai.usage.input_tokens"] == len("<user>hi")
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["gen_ai.request.max_tokens"] == 3
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["http.response.status_code"] == 200
    assert "hi" not in map(str, attributes.values())


def test_a_refusal_has_a_span_and_a_failure_says_so() -> None:
    [refused] = spans_of((CHAT, HELLO | {"n": 0}, {}))
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.status.is_unset
    [*_, failed] = spans_of((CHAT, HELLO, {}), fail_at=0)
    assert failed.status.description or failed.attributes["http.response.status_code"] == 500
    assert not failed.status.is_ok


def test_probes_are_not_traced() -> None:
    assert spans_of(("/health", None, {}), ("/metrics", None, {})) == []


def test_an_endpoint_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_is_installed", lambda _: False)
    launch.check_tracing(ServiceConfig())
    with pytest.raises(InvalidConfig, match="otel"):
        launch.check_tracing(ServiceConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces"))
