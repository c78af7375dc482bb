"""The master of an image model: the front side's one object. What servers and the offline API talk to.

Knows nothing of HTTP, of scheduling or of tensors.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import QueueFull, ShuttingDown
from xllm_framework.model.image_pipeline import ImagePipeline, read_image_pipeline
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import (
    AbortRequests,
    EngineFailed,
    EngineReady,
    EngineStats,
    Pause,
    PauseMode,
    Resume,
)
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.dit_dispatcher import ImageDispatcher, OnImageOutput
from xllm_runtime.master.dit_request import ImageRequest, ImageRequestFactory, PreparedImages
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0


class DiTMaster:
    """Serves one image model. All methods can be called from any thread; `create_master` makes one."""

    backend = "dit"
    """Which routes a server offers over it."""

    def __init__(
        self,
        config: XLLMConfig,
        client: EngineClient,
        ready: EngineReady,
        events: queue.SimpleQueue[Any],
        *,
        model_name: str,
        pipeline: ImagePipeline,
    ) -> None:
        self.config = config
        self.ready = ready
        self.model_name = model_name
        self.pipeline = pipeline
        self._client = client
        self._dispatcher = ImageDispatcher(events, self._on_failure)
        self._dispatcher.start()
        self._factory = ImageRequestFactory(pipeline, config.dit, config.scheduler.seed)
        self._max_in_flight = config.dit.max_requests_per_batch + config.scheduler.max_num_waiting
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self._is_draining = False
        self._is_closed = False

    @classmethod
    def attach(
        cls, config: XLLMConfig, files: ModelFiles, client: EngineClient, events: queue.SimpleQueue[Any]
    ) -> DiTMaster:
        """Make the front side while the engine side behind `client` loads `files`; return once that is ready.

        Raises:
            XLLMError: the model cannot be served; the class and the sentence are the engine side's own.
        """
        pipeline = read_image_pipeline(files.path)
        name = model_name(config, files)
        return cls(config, client, wait_ready(events), events, model_name=name, pipeline=pipeline)

    def prepare_images(self, asked: ImageRequest, **options: Any) -> PreparedImages:
        """Check a request and fill in what it leaves out; takes no time.

        Args:
            options: request_id, priority and deadline_s; others are of no meaning here.

        Raises:
            InvalidRequest: it cannot be served; `param` names the field.
        """
        return self._factory.prepare(asked, **options)

    def submit(self, prepared: PreparedImages, on_output: OnImageOutput) -> None:
        """Start a prepared request; never blocks.

        Args:
            on_output: gets news on the dispatcher's thread, in order, until one with `finished=True`; it must be quick.

        Raises:
            QueueFull: as many requests wait as may.
            ShuttingDown: `drain` or `close` was called.
            EngineDead: the engine side has ended.
        """
        if self._is_draining:
            raise ShuttingDown("The engine is about to stop and takes no new requests.")
        if self.num_in_flight >= self._max_in_flight:
            raise QueueFull(f"{self.config.scheduler.max_num_waiting} requests wait already (max_num_waiting).")
        self._dispatcher.add(prepared, on_output)
        self._client.send(prepared.message)

    def cancel(self, request_id: str) -> None:
        """Give up the request with this `PreparedImages.request_id`: one last output, with finish reason abort, follows.

        Its place is free one step later. Unknown ids, and those of requests that have ended, are ignored.
        """
        if self._dispatcher.cancel(request_id):
            self._client.send(AbortRequests([request_id]))

    def pause(self, mode: PauseMode) -> None:
        """Let the engine stop between two steps; does not wait: `stats.pause_state` says when it has."""
        self._client.send(Pause(mode))

    def resume(self) -> None:
        """Let the engine go on; does not wait."""
        self._client.send(Resume())

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of the engine's latest step."""
        return self._dispatcher.stats

    @property
    def num_in_flight(self) -> int:
        """Requests that were submitted and have not ended."""
        return self._dispatcher.num_in_flight

    def health(self) -> str | None:
        """Return None while requests are served, else why not."""
        if self._dispatcher.failure is not None:
            return self._dispatcher.failure.message
        if self._is_draining:
            return "The engine is about to stop."
        return self._dispatcher.pulse.complaint(self.config.service.step_timeout)

    def on_engine_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason, on the dispatcher's thread, once the engine side has ended by an error."""
        with self._lock:
            self._failure_callbacks.append(callback)

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the running ones; False if some still run after `timeout_s`."""
        self._is_draining = True
        return self._dispatcher.wait_until_idle(timeout_s)

    def close(self) -> None:
        """Cancel what runs, end the engine side and the dispatcher. Calling it again does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._is_draining = True
        for request_id in self._dispatcher.in_flight_ids():
            self.cancel(request_id)
        self._client.close(CLOSE_TIMEOUT_S)
        self._dispatcher.close()

    def _on_failure(self, failure: EngineFailed) -> None:
        logger.error("%s", failure.message)
        with self._lock:
            callbacks = list(self._failure_callbacks)
        for callback in callbacks:
            callback(failure.message)
