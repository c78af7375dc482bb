"""Prometheus metrics: names, help texts and where their values come from. docs/reference/metrics.md is their reference.

Knows nothing of HTTP bodies. Nothing here raises into serving: a reading that cannot be taken is logged once and dropped.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from xllm_framework.request import RequestOutput, RequestTimings
from xllm_server.limits import Admission
from xllm_server.ports import Master

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

logger = logging.getLogger(__name__)
MethodT = TypeVar("MethodT", bound=Callable[..., None])


def _never_raises(method: MethodT) -> MethodT:
    """Wrap a method that records something: an error in it is logged once, and serving goes on."""
    has_failed = False

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> None:
        nonlocal has_failed
        try:
            method(*args, **kwargs)
        except Exception:
            if not has_failed:
                has_failed = True
                logger.exception("A metric could not be recorded; further faults of this kind are not logged.")

    return guarded  # type: ignore[return-value]


class ServerMetrics:
    """The metrics of one process, in a registry of their own, each with the label `model_name`."""

    def __init__(self, master: Master, admission: Admission) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.registry.register(EngineCollector(master, admission))
        model = master.model_name
        self._http = Counter(
            "xllm:http_requests", "Answered HTTP requests.", ("method", "path", "code"), registry=self.registry
        )
        self._started = self._counter("xllm:requests", "Requests given to the engine, one a prompt.", model)
        self._finished = Counter(
            "xllm:request_success",
            "Ended requests by reason: stop, length, abort, error.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._model = model
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(model, reason)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _LATENCY_BUCKETS_S
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Mean time between the tokens of a request.", _TOKEN_BUCKETS_S
        )
        self._per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "(Last - first token) / (tokens - 1) of a request.",
            _TOKEN_BUCKETS_S,
        )
        self._inference = self._histogram(
            "request_inference_time_seconds", "First step to last token.", _LATENCY_BUCKETS_S
        )
        self._end_to_end = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _LATENCY_BUCKETS_S)
        self._queued = self._histogram("request_queue_time_seconds", "Arrival to first step.", _LATENCY_BUCKETS_S)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "First step to first token.", _LATENCY_BUCKETS_S
        )
        self._decode = self._histogram("request_decode_time_seconds", "First token to last.", _LATENCY_BUCKETS_S)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _LENGTH_BUCKETS)
        self._output_length = self._histogram(
            "request_generation_tokens", "Generated tokens of a request, all of its sequences.", _LENGTH_BUCKETS
        )

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    @_never_raises
    def http_answered(self, method: str, path: str, status: int) -> None:
        """Count an answered HTTP request; `path` is a route's pattern, so that its values are few."""
        self._http.labels(method, path, str(status)).inc()

    @_never_raises
    def request_started(self) -> None:
        """Count a request given to the engine."""
        self._started.inc()

    @_never_raises
    def request_aborted(self) -> None:
        """Count a request whose client left before its end."""
        self._finished.labels(self._model, "abort").inc()

    @_never_raises
    def request_finished(self, output: RequestOutput, finish_reasons: set[str], num_output_tokens: int) -> None:
        """Count and time a request that ended by itself; `output` is its last output.

        Of several sequences the most telling reason counts: error, abort, length, stop.
        """
        reasons = {"error"} if output.error is not None else finish_reasons
        reason = next((name for name in ("error", "abort", "length") if name in reasons), "stop")
        self._finished.labels(self._model, reason).inc()
        self._prompt_length.observe(output.num_prompt_tokens)
        self._output_length.observe(num_output_tokens)
        if output.timings is not None:
            self._observe_timings(output.timings, num_output_tokens)

    def _observe_timings(self, timings: RequestTimings, num_output_tokens: int) -> None:
        arrival, scheduled = timings.arrival_s, timings.first_scheduled_s
        first, last, finished = timings.first_token_s, timings.last_token_s, timings.finished_s
        if finished is not None:
            self._end_to_end.observe(finished - arrival)
        if scheduled is not None:
            self._queued.observe(scheduled - arrival)
        if first is None:
            return
        self._first_token.observe(first - arrival)
        if scheduled is not None:
            self._prefill.observe(first - scheduled)
        if last is not None:
            self._decode.observe(last - first)
            if scheduled is not None:
                self._inference.observe(last - scheduled)
            if num_output_tokens > 1:
                self._inter_token.observe((last - first) / (num_output_tokens - 1))
                self._per_output_token.observe((last - first) / (num_output_tokens - 1))

    def _counter(self, name: str, documentation: str, model: str) -> Counter:
        return Counter(name, documentation, ("model_name",), registry=self.registry).labels(model)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"xllm:{name}", documentation, ("model_name",), buckets=buckets, registry=self.registry)
        return histogram.labels(self._model)


_GAUGES = {
    "num_requests_running": ("num_running", "Sequences in the running batch."),
    "num_requests_waiting": ("num_waiting", "Sequences that wait for their first step, or again after a preemption."),
    "kv_blocks": ("num_blocks", "KV-cache blocks in all."),
    "kv_blocks_free": ("num_free_blocks", "KV-cache blocks that hold nothing."),
    "kv_blocks_cached": ("num_cached_blocks", "KV-cache blocks that only the prefix cache holds; they can be taken."),
}
_COUNTERS = {
    "engine_steps": ("num_steps", "Steps of the engine."),
    "engine_step_time_seconds": ("step_time_s", "Time spent in steps."),
    "prompt_tokens": ("num_prompt_tokens", "Prompt tokens computed."),
    "generation_tokens": ("num_generated_tokens", "Tokens generated."),
    "num_preemptions": ("num_preemptions", "Sequences that gave up their blocks and start again."),
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "encoded_media": ("num_encoded_media", "Images and videos that went through a vision tower."),
    "cached_media": ("num_cached_media", "Images and videos whose embeddings were found in the encoder cache."),
}
"""Metric -> (field of `EngineStats`, help)."""


class EngineCollector(Collector):
    """Reads the engine's own numbers at each scrape: counters are the engine's totals, so they never step back."""

    def __init__(self, master: Master, admission: Admission) -> None:
        self._master = master
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the moment."""
        stats, ready = self._master.stats, self._master.ready
        model = [self._master.model_name]
        for name, (field, documentation) in _GAUGES.items():
            yield self._gauge(name, documentation, getattr(stats, field), model)
        for name, (field, documentation) in _COUNTERS.items():
            counter = CounterMetricFamily(f"xllm:{name}", documentation, labels=("model_name",))
            counter.add_metric(model, getattr(stats, field))
            yield counter
        used = stats.num_blocks - stats.num_free_blocks - stats.num_cached_blocks
        usage = used / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV-cache blocks that requests hold, 0 to 1.", usage, model
        )
        in_flight = self._admission.num_in_flight
        yield self._gauge("num_requests_in_flight", "HTTP requests that generate now.", in_flight, model)
        yield self._gauge("up", "1 while the engine serves.", float(self._master.health() is None), model)
        paused = float(stats.pause_state == "paused")
        yield self._gauge("engine_paused", "1 between /pause and /resume.", paused, model)
        cache = GaugeMetricFamily(
            "xllm:cache_config_info", "The KV cache; always 1.", labels=("model_name", "block_size", "num_blocks")
        )
        cache.add_metric([*model, str(ready.block_size), str(ready.num_blocks)], 1.0)
        yield cache
        build = GaugeMetricFamily(
            "xllm:engine_info", "What serves; always 1.", labels=("model_name", "model_impl", "device", "dtype")
        )
        build.add_metric([*model, ready.model_impl, ready.device, ready.dtype], 1.0)
        yield build

    @staticmethod
    def _gauge(name: str, documentation: str, value: float, model: list[str]) -> Metric:
        gauge = GaugeMetricFamily(f"xllm:{name}", documentation, labels=("model_name",))
        gauge.add_metric(model, value)
        return gauge


class HttpMetricsMiddleware:
    """Counts every answer by method, route and status."""

    def __init__(self, app: Any, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def send_and_note(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            route = scope.get("route")
            self._metrics.http_answered(scope["method"], getattr(route, "path", "other"), status)
