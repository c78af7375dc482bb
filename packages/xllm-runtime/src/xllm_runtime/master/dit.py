"""The master of an image model: the front side's one object. What servers and the offline API talk to.

Knows nothing of HTTP, of scheduling or of tensors.
"""

from __future__ import annotations

import queue
from typing import Any

from xllm_framework.config import XLLMConfig
from xllm_framework.model.image_pipeline import ImagePipeline, read_image_pipeline
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import EngineReady
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.dit_dispatcher import ImageDispatcher, OnImageOutput
from xllm_runtime.master.dit_request import ImageRequest, ImageRequestFactory, PreparedImages
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.front_side import FrontSide


class DiTMaster(FrontSide):
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
        super().__init__(config, client, ready, model_name, max_running=config.dit.max_requests_per_batch)
        self.pipeline = pipeline
        self._dispatcher: ImageDispatcher = ImageDispatcher(events, self._abort, self._on_failure)
        self._dispatcher.start()
        self._factory = ImageRequestFactory(pipeline, config.dit, config.scheduler.seed)

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
        self._check_room()
        self._dispatcher.add(prepared, on_output)
        self._client.send(prepared.message)
