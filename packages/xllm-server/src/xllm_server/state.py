"""What all routes share. Knows nothing of any one route."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xllm_framework.config import ServiceConfig
from xllm_server.api_service.output_bridge import OutputBridge
from xllm_server.errors import UnknownModel
from xllm_server.limits import Admission
from xllm_server.metrics import ServerMetrics
from xllm_server.parsers.model_parsers import ModelParsers
from xllm_server.ports import Master

if TYPE_CHECKING:
    from xllm_server.tracing import RequestTracer


MEDIA_THREADS = 16
"""Further threads that prepare requests where these may bring URLs: they mostly wait for other servers."""


@dataclass(slots=True)
class ServerState:
    """One a process; made on the event loop that serves."""

    master: Master
    config: ServiceConfig
    admission: Admission
    metrics: ServerMetrics
    bridge: OutputBridge
    parsers: ModelParsers
    """What finds reasoning and tool calls in the model's answers."""
    executor: ThreadPoolExecutor
    """Threads for templates, tokenising and large bodies, so that the event loop stays free."""
    tracer: RequestTracer | None = None
    """Makes spans of requests, where traces are exported."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time at which the model became ready."""

    @classmethod
    def create(
        cls,
        master: Master,
        config: ServiceConfig,
        parsers: ModelParsers | None = None,
        tracer: RequestTracer | None = None,
    ) -> ServerState:
        """Return the state for the running event loop."""
        admission = Admission(config.max_concurrent_requests)
        return cls(
            master=master,
            config=config,
            admission=admission,
            metrics=ServerMetrics(master, admission),
            bridge=OutputBridge(asyncio.get_running_loop()),
            parsers=parsers or ModelParsers(),
            executor=ThreadPoolExecutor(_num_threads(master, config), thread_name_prefix="request"),
            tracer=tracer,
        )

    def check_model(self, model: str | None) -> None:
        """Check the model that a request names; None takes the served one.

        Raises:
            UnknownModel: another one is served here.
        """
        if model is not None and model != self.master.model_name:
            raise UnknownModel(f"The model {model[:200]!r} is not served here; {self.master.model_name!r} is.", "model")

    def health(self) -> str | None:
        """Return None when requests are served, else the reason why not."""
        if self.admission.is_draining:
            return "The server is shutting down."
        return self.master.health()


def _num_threads(master: Master, config: ServiceConfig) -> int:
    return config.num_request_handling_threads + (MEDIA_THREADS if master.backend == "vlm" else 0)
