"""One call for vectors: embeddings of texts, or scores of documents. Many requests of the master, one answer to the host.

Knows nothing of sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xllm_capi.messages import Pool, Vectors
from xllm_capi.searching import refuse_recommender
from xllm_framework.errors import InvalidRequest, QueueFull, XLLMError
from xllm_framework.request import FinishReason, RequestOutput

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster, PreparedRequest

RETRY_S = 0.002
"""Before a request is offered again to a queue that is full of the call's earlier ones."""


class PoolingCall:
    """Answers `message` through `answer`, exactly once. `run` may wait long: not for a thread that others depend on."""

    def __init__(self, master: LLMMaster, message: Pool, answer: Callable[[Vectors], None]) -> None:
        self._master = master
        self._message = message
        self._answer = answer
        self._lock = threading.Lock()
        self._is_over = False
        self._running: dict[int, str] = {}
        self._outputs: dict[int, RequestOutput] = {}
        self._num_prepared = 0

    def run(self) -> None:
        """Prepare and submit the call's requests; return when all are on their way, or the call is over."""
        try:
            prepared = self._prepare()
            self._num_prepared = len(prepared)
            for index, request in enumerate(prepared):
                self._submit(index, request)
        except XLLMError as error:
            self._end(Vectors(self._message.id, error.kind, error.message))
        except Exception as error:  # one call fails alone
            self._end(Vectors(self._message.id, "internal", f"The engine could not prepare the request: {error}"))

    def cancel(self) -> None:
        """Give the call up. Any thread."""
        self._end(Vectors(self._message.id, "cancelled", "The engine has given the request up."))

    def _prepare(self) -> list[PreparedRequest]:
        refuse_recommender(self._master)
        message, limit = self._message, self._message.truncate_to
        options: dict[str, Any] = {
            "request_id": message.request_id,
            "priority": message.priority,
            "cache_salt": message.cache_salt,
            "is_offline": message.is_offline,
        }
        truncate_to = None if limit == 0 else self._master.ready.max_model_len if limit < 0 else limit
        if message.query is not None:
            if message.dimensions:
                raise InvalidRequest("dimensions must be 0: scores have none.", "dimensions")
            return self._master.scorer.prepare(self._pairs(), truncate_to=truncate_to, **options)
        pooling = self._master.pooling
        pooling.check_dimensions(message.dimensions or None)
        prompts: list[Any] = message.texts if message.token_ids is None else [message.token_ids]
        return [pooling.prepare(prompt, param="texts", truncate_to=truncate_to, **options) for prompt in prompts]

    def _pairs(self) -> list[tuple[str, str]]:
        return [(self._message.query or "", text) for text in self._message.texts]

    def _submit(self, index: int, request: PreparedRequest) -> None:
        """Submit one request; where the queue is full of those before it, wait for room."""
        while True:
            with self._lock:
                if self._is_over:
                    return
                try:
                    self._master.submit(request, partial(self._on_output, index))
                    self._running[index] = request.request_id
                    return
                except QueueFull:
                    if not self._running:
                        raise
            time.sleep(RETRY_S)

    def _on_output(self, index: int, output: RequestOutput) -> None:
        """Take the end of one request from the master's dispatcher thread."""
        if not output.finished:
            return
        if output.error is not None:
            self._end(Vectors(self._message.id, output.error_kind or "internal", output.error))
        elif any(sequence.finish_reason is FinishReason.ABORT for sequence in output.outputs):
            self.cancel()
        else:
            with self._lock:
                self._running.pop(index, None)
                self._outputs[index] = output
                is_complete = len(self._outputs) == self._num_prepared
            if is_complete:
                self._end(self._vectors())

    def _vectors(self) -> Vectors:
        message = self._message
        outputs = [self._outputs[index] for index in range(self._num_prepared)]
        if message.query is not None:
            rows = np.array(self._master.scorer.scores(self._pairs(), outputs), "<f4")[:, None]
        else:
            rows = np.stack([self._master.pooling.vector(output, message.dimensions or None) for output in outputs])
        return Vectors(
            message.id,
            None,
            None,
            sum(output.num_prompt_tokens for output in outputs),
            sum(output.num_cached_tokens for output in outputs),
            rows.shape[1],
            rows.astype("<f4").tobytes(),
        )

    def _end(self, vectors: Vectors) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            running = list(self._running.values())
        self._answer(vectors)
        for request_id in running:
            self._master.cancel(request_id)
