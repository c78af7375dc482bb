"""OpenTelemetry traces: a span for each generating HTTP request, and under it queue, prefill and decode of each prompt.

The caller's `traceparent` is honoured. Spans carry sizes and times, never contents. Needs xllm-server[otel], which is imported
only where an exporter is asked for.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_server import __version__

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Path -> the value of `gen_ai.operation.name`; other paths are not traced."""
_PHASES = (
    ("queue", "arrival_s", "first_scheduled_s"),
    ("prefill", "first_scheduled_s", "first_token_s"),
    ("decode", "first_token_s", "last_token_s"),
)
"""Child span -> the readings of `RequestTimings` at which it begins and ends."""

logger = logging.getLogger(__name__)


class RequestTracer:
    """Makes the spans of one process. Event loop only.

    Args:
        exporter: takes finished spans.
        is_batched: export in the background, as a server must; else at once.
    """

    def __init__(self, exporter: SpanExporter, model: str, *, is_batched: bool = True) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "xllm", "service.version": __version__})
        )
        processor = BatchSpanProcessor(exporter) if is_batched else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("xllm_server", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._model = model
        self._unix_offset_ns = time.time_ns() - time.monotonic_ns()

    def begin(self, scope: Any) -> trace.Span | None:
        """Return the span of an HTTP request, None where it is not traced."""
        operation = OPERATIONS.get(scope["path"])
        if operation is None:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        return self._tracer.start_span(
            f"{operation} {self._model}",
            self._propagator.extract(headers),
            SpanKind.SERVER,
            {
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "xllm",
                "gen_ai.request.model": self._model,
            },
        )

    def request_finished(
        self, prepared: PreparedRequest, output: RequestOutput, finish_reasons: set[str], num_output_tokens: int
    ) -> None:
        """Add the phases of a prompt that has ended to the span of the request under way."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        sampling = prepared.sampling
        attributes: dict[str, Any] = {
            "gen_ai.usage.input_tokens": output.num_prompt_tokens,
            "gen_ai.usage.output_tokens": num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": output.num_cached_tokens,
            "gen_ai.response.finish_reasons": sorted(finish_reasons),
            "gen_ai.response.model": self._model,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sampling.n,
        }
        if sampling.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
        span.set_attributes(attributes)
        if output.error is not None:
            span.set_status(Status(StatusCode.ERROR, output.error))
        for name, first, last in _PHASES:
            begin_s, end_s = getattr(output.timings, first, None), getattr(output.timings, last, None)
            if begin_s is not None and end_s is not None:
                child = self._tracer.start_span(name, start_time=self._unix_ns(begin_s))
                child.end(self._unix_ns(end_s))

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()

    def _unix_ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * 1e9) + self._unix_offset_ns


class TracingMiddleware:
    """Keeps the request's span current while it is served."""

    def __init__(self, app: Any, tracer: RequestTracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        span = self._tracer.begin(scope) if scope["type"] == "http" else None
        if span is None:
            await self._app(scope, receive, send)
            return

        async def send_and_note(message: Any) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        token = context.attach(trace.set_span_in_context(span))
        try:
            await self._app(scope, receive, send_and_note)
        finally:
            context.detach(token)
            span.end()


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return what sends spans to an OTLP collector over HTTP, as http://host:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint)
