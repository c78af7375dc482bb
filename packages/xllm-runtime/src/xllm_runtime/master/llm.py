"""The master of a language model: the front side's one object. What servers, the offline API and the C API talk to.

It prepares requests (template, tokens, checks), hands them to the engine side through an `EngineClient`, and brings
outputs to callbacks through the dispatcher. Knows nothing of HTTP, of scheduling or of tensors.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Unpack

from xllm_framework.chat_template import ChatTemplate, load_chat_template
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidRequest, QueueFull, ShuttingDown
from xllm_framework.model import ModelArgs, load_model_args
from xllm_framework.model.pooling import DEFAULT_POOLING, PoolingSettings, load_pooling
from xllm_framework.model.source import ModelFiles
from xllm_framework.request import SamplingParams
from xllm_framework.request.messages import (
    AbortRequests,
    EngineFailed,
    EngineReady,
    EngineStats,
    Pause,
    PauseMode,
    Resume,
    StartProfile,
    StopProfile,
)
from xllm_framework.tokenizer import Tokenizer, load_tokenizer
from xllm_runtime.auto_config import model_name
from xllm_runtime.master.chat_input import ChatInput
from xllm_runtime.master.dispatcher import AbortTarget, DispatcherEvent, OnOutput, RequestOutputDispatcher
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.failures import wait_ready
from xllm_runtime.master.pooling_requests import PoolingRequests
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import RequestFactory
from xllm_runtime.master.scoring import select_scorer

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0


class LLMMaster:
    """Serves one language model. All methods can be called from any thread; `create` makes one."""

    backend = "llm"
    """Which routes a server offers over it."""

    def __init__(
        self,
        config: XLLMConfig,
        client: EngineClient,
        ready: EngineReady,
        events: queue.SimpleQueue[DispatcherEvent],
        *,
        model_name: str,
        model_args: ModelArgs,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        pooling: PoolingSettings = DEFAULT_POOLING,
    ) -> None:
        self.config = config
        self.ready = ready
        self.model_name = model_name
        self.model_args = model_args
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._client = client
        self._dispatcher = RequestOutputDispatcher(events, tokenizer, self._abort, self._on_failure)
        self._dispatcher.start()
        client.redirect(self._dispatcher.take)
        self._factory = RequestFactory(
            tokenizer,
            chat_template,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            seed=config.scheduler.seed,
        )
        self.pooling = PoolingRequests(self._factory, model_args, pooling)
        """Embeddings of prompts."""
        self.scorer = select_scorer(config.model, model_name, model_args, tokenizer, self._factory, self.pooling)
        """Scores of pairs of texts."""
        self._max_in_flight = config.scheduler.max_num_seqs + config.scheduler.max_num_waiting
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self._is_draining = False
        self._is_closed = False

    @classmethod
    def create(cls, config: XLLMConfig, *, engine_process: bool) -> LLMMaster:
        """Load the model and return once it takes requests; see `create_master`."""
        from xllm_runtime.master.selection import create_master

        return create_master(config, engine_process=engine_process)

    @classmethod
    def attach(
        cls,
        config: XLLMConfig,
        files: ModelFiles,
        client: EngineClient,
        events: queue.SimpleQueue[DispatcherEvent],
    ) -> LLMMaster:
        """Make the front side while the engine side behind `client` loads `files`; return once that is ready.

        Raises:
            XLLMError: the model cannot be served; the class and the sentence are the engine side's own.
        """
        args = load_model_args(files)
        pooling = load_pooling(files, config.model)
        tokenizer = load_tokenizer(files)
        chat_template = load_chat_template(files, config.model.chat_template)
        return cls(
            config,
            client,
            wait_ready(events),
            events,
            model_name=model_name(config, files),
            model_args=args,
            tokenizer=tokenizer,
            chat_template=chat_template,
            pooling=pooling,
        )

    def prepare_completion(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        **options: Unpack[RequestOptions],
    ) -> PreparedRequest:
        """Tokenise and check a prompt (text or token ids). May take long for a long text; call it off the event loop.

        Raises:
            InvalidRequest, RequestTooLong: it cannot be served; `param` names the field.
        """
        self._check_generates()
        return self._factory.from_prompt(prompt, params, add_special_tokens=add_special_tokens, **options)

    def prepare_chat(
        self, chat: ChatInput, params: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedRequest:
        """Apply the chat template, then do as `prepare_completion` does, and raise as it does."""
        self._check_generates()
        return self._factory.from_chat(chat, params, **options)

    def submit(self, prepared: PreparedRequest, on_output: OnOutput) -> None:
        """Start a prepared request; never blocks.

        Args:
            on_output: gets deltas on the dispatcher's thread, in order, until one with `finished=True`; it must be quick.

        Raises:
            QueueFull: as many requests wait as may.
            ShuttingDown: `drain` or `close` was called.
            EngineDead: the engine side has ended.
        """
        if self._is_draining:
            raise ShuttingDown("The engine is about to stop and takes no new requests.")
        limit = self.config.scheduler.max_num_waiting
        if self.num_in_flight >= self._max_in_flight or self.stats.num_waiting >= max(limit, 1):
            raise QueueFull(f"{limit} requests wait already (max_num_waiting).")
        self._dispatcher.add(prepared, on_output)
        self._client.send(prepared.message)

    def cancel(self, request_id: str) -> None:
        """Give up the request with this `PreparedRequest.request_id`: one last output, with finish reason abort, follows.

        Its blocks are free one step later. Unknown ids, and those of requests that have ended, are ignored.
        """
        self._dispatcher.cancel(request_id)

    def pause(self, mode: PauseMode) -> None:
        """Let the engine stop computing; does not wait: `stats.pause_state` says when it has. New requests wait."""
        self._client.send(Pause(mode))

    def resume(self) -> None:
        """Let the engine go on; does not wait."""
        self._client.send(Resume())

    def start_profile(self) -> None:
        """Let the engine record what it does; does not wait: `stats.profile` counts these calls and says what became of them."""
        self._client.send(StartProfile())

    def stop_profile(self) -> None:
        """Let the engine end the recording and write it; does not wait, as `start_profile`."""
        self._client.send(StopProfile())

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
        self._dispatcher.cancel_all()
        self._client.close(CLOSE_TIMEOUT_S)
        self._dispatcher.close()

    def _check_generates(self) -> None:
        if self.model_args.head != "language":
            raise InvalidRequest("This model generates no text: ask it for embeddings or scores.", "model")

    def _abort(self, targets: list[AbortTarget]) -> None:
        self._client.send(AbortRequests(targets))

    def _on_failure(self, failure: EngineFailed) -> None:
        logger.error("%s", failure.message)
        with self._lock:
            callbacks = list(self._failure_callbacks)
        for callback in callbacks:
            callback(failure.message)
