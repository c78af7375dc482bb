"""A master without an engine: answers come from a script, tokens are bytes. For tests of what stands in front of one.

Every request gets `reply`'s tokens, one an output, from a thread of its own step loop.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xllm_framework.config import ModelConfig
from xllm_framework.errors import EngineDead, InvalidRequest, QueueFull, RequestTooLong
from xllm_framework.model import ModelArgs
from xllm_framework.model.pooling import PoolingSettings
from xllm_framework.request import (
    FinishReason,
    RequestOutput,
    RequestTimings,
    SamplingParams,
    SequenceOutput,
    TokenLogprob,
)
from xllm_framework.request.messages import AddRequest, EngineReady, EngineStats, ProfileState
from xllm_runtime.master import ChatInput, PreparedRequest
from xllm_runtime.master.pooling_requests import PoolingRequests
from xllm_runtime.master.request_factory import RequestFactory
from xllm_runtime.master.scoring import select_scorer

OnOutput = Callable[[RequestOutput], None]
END = 256
"""The special token that ends a text."""
MODEL_SHAPE = {
    "architecture": "Fake",
    "model_type": "fake",
    "vocab_size": 257,
    "hidden_size": 4,
    **dict.fromkeys(("intermediate_size", "num_layers", "num_heads", "num_kv_heads"), 1),
    "head_dim": 4,
    "max_position_embeddings": 4096,
}


class ByteTokenizer:
    """Token id = byte value; 256 is special and ends a text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(token_id for token_id in ids if token_id != END).decode("utf-8", "replace")

    def max_text_length(self, max_tokens: int) -> int:
        return max_tokens

    def token_bytes(self, id: int) -> bytes:  # noqa: A002
        return b"<end>" if id == END else bytes([id])

    def is_special(self, id: int) -> bool:  # noqa: A002
        return id == END


@dataclass
class _Running:
    prepared: PreparedRequest
    on_output: OnOutput
    is_cancelled: bool = False
    position: int = 0
    timings: RequestTimings = field(default_factory=lambda: RequestTimings(time.monotonic()))


class FakeMaster:
    """See the module."""

    def __init__(self, reply: bytes = b"hello", *, max_model_len: int = 4096) -> None:
        self.backend = "llm"
        self.model_name = "org/fake"
        self.tokenizer = ByteTokenizer()
        self.ready = EngineReady(max_model_len, 64, 16, 257, "python", "cpu", "float32")
        factory = RequestFactory(self.tokenizer, None, max_model_len=max_model_len, vocab_size=257)
        args = ModelArgs(**MODEL_SHAPE)
        self.pooling = PoolingRequests(factory, args, PoolingSettings())
        self.scorer = select_scorer(ModelConfig(), self.model_name, args, self.tokenizer, factory, self.pooling)
        self.stats = EngineStats(num_blocks=64, num_free_blocks=64)
        self.reply = [*reply, END]
        self.hold_at: int | None = None
        """Token position at which every request stands still, until it is set to None."""
        self.is_holding = False
        self.fail_at: int | None = None
        """Token position at which every request fails."""
        self.is_full = False
        self.prepare_delay_s = 0.0
        self.seen: list[tuple[str | list[int] | ChatInput, SamplingParams, dict[str, object]]] = []
        self.cancelled: list[str] = []
        self.seen_pauses: list[str] = []
        self._failure: str | None = None
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._numbers = itertools.count()
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def prepare_completion(
        self, prompt: str | list[int], params: SamplingParams, *, add_special_tokens: bool = True, **options: object
    ) -> PreparedRequest:
        self.seen.append((prompt, params, options))
        text = prompt if isinstance(prompt, str) else None
        return self._prepare(text, list(prompt.encode()) if isinstance(prompt, str) else prompt, params, options)

    def prepare_chat(self, chat: ChatInput, params: SamplingParams, **options: object) -> PreparedRequest:
        self.seen.append((chat, params, options))
        if any(message.get("content") == "refuse me" for message in chat.messages):
            raise InvalidRequest("The template says no.", "messages")
        text = "".join(f"<{message['role']}>{message.get('content')}" for message in chat.messages)
        return self._prepare(text, list(text.encode()), params, options)

    def tokenize_chat(self, chat: ChatInput) -> list[int]:
        return self.prepare_chat(chat, SamplingParams(max_tokens=0)).prompt_token_ids

    def _prepare(
        self, text: str | None, ids: list[int], params: SamplingParams, options: dict[str, object]
    ) -> PreparedRequest:
        time.sleep(self.prepare_delay_s)
        if len(ids) >= self.ready.max_model_len:
            raise RequestTooLong(f"{len(ids)} tokens, limit {self.ready.max_model_len}.", "prompt")
        params.check_vocabulary(self.ready.vocab_size)
        message = AddRequest(f"internal-{next(self._numbers)}", ids, params, time.monotonic())
        return PreparedRequest(message, text, None)

    def submit(self, prepared: PreparedRequest, on_output: OnOutput) -> None:
        if self._failure is not None:
            raise EngineDead(self._failure)
        if self.is_full:
            raise QueueFull("Too many wait.", retry_after_s=7)
        with self._lock:
            self._running[prepared.request_id] = _Running(prepared, on_output)
            self.is_holding = False
        self._work.set()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        with self._lock:
            running = self._running.pop(request_id, None)
        if running is not None:
            running.on_output(self._output(running, [SequenceOutput(0, finish_reason=FinishReason.ABORT)], True))

    @property
    def num_in_flight(self) -> int:
        return len(self._running)

    def pause(self, mode: str) -> None:
        self.seen_pauses.append(mode)
        self.stats.pause_state = "paused"

    def resume(self) -> None:
        self.stats.pause_state = "running"

    def start_profile(self) -> None:
        self._profile("Profiles are off.")

    def stop_profile(self) -> None:
        self._profile("No profile is being recorded.")

    def _profile(self, error: str) -> None:
        self.stats.profile = ProfileState(self.stats.profile.number + 1, error=error)

    def health(self) -> str | None:
        return self._failure

    def on_engine_failure(self, callback: Callable[[str], None]) -> None:
        self._failure_callbacks.append(callback)

    def die(self, reason: str) -> None:
        """End the engine: every request in flight gets an error."""
        self._failure = reason
        with self._lock:
            lost, self._running = list(self._running.values()), {}
        for running in lost:
            output = self._output(running, [], True)
            output.error, output.error_kind = reason, EngineDead.kind
            running.on_output(output)
        for callback in self._failure_callbacks:
            callback(reason)

    def close(self) -> None:
        self._is_closed = True
        for request_id in list(self._running):
            self.cancel(request_id)
        self._work.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._work.wait()
            with self._lock:
                batch = list(self._running.values())
                if not batch:
                    self._work.clear()
                    continue
            self.is_holding = all(running.position == self.hold_at for running in batch)
            if self.is_holding:
                time.sleep(0.001)
            for running in batch:
                if running.position != self.hold_at:
                    self._step(running)

    def _step(self, running: _Running) -> None:
        params, pooling = running.prepared.sampling, running.prepared.message.pooling
        position = running.position
        running.position += 1
        if position == self.fail_at:
            output = self._output(running, [], True)
            output.error, output.error_kind = "The model raised.", "request_failed"
            self._finish(running, output)
            return
        if pooling is not None:
            sequence = SequenceOutput(0, finish_reason=FinishReason.STOP)
            sequence.pooled = np.array([len(running.prepared.prompt_token_ids), 1, 2, 2], np.float32)
            self._finish(running, self._output(running, [sequence], True))
            return
        limit = params.max_tokens if params.max_tokens is not None else len(self.reply)
        token_id = self.reply[position] if position < len(self.reply) else END
        outputs = [self._sequence(index, token_id, position, limit, params) for index in range(params.n)]
        is_last = outputs[0].finish_reason is not None
        now_s = time.monotonic()
        running.timings.first_scheduled_s = running.timings.first_scheduled_s or now_s
        if outputs[0].token_ids:
            running.timings.first_token_s = running.timings.first_token_s or now_s
            running.timings.last_token_s = now_s
        if is_last:
            running.timings.finished_s = now_s
        output = self._output(running, outputs, is_last)
        if position == 0 and params.prompt_logprobs is not None:
            ids = running.prepared.prompt_token_ids
            output.prompt_logprobs = [None, *(TokenLogprob(token, -1.0, [(65, -0.5)]) for token in ids[1:])]
        if is_last:
            self._finish(running, output)
        else:
            running.on_output(output)

    def _sequence(self, index: int, token_id: int, position: int, limit: int, params: SamplingParams) -> SequenceOutput:
        if limit == 0:
            return SequenceOutput(index, finish_reason=FinishReason.LENGTH)
        text = "" if token_id == END else chr(token_id) if token_id < 128 else ""
        reason = FinishReason.STOP if token_id == END else FinishReason.LENGTH if position + 1 == limit else None
        logprobs = [TokenLogprob(token_id, -0.25, [(66, -0.5)])] if params.logprobs is not None else None
        return SequenceOutput(index, text, [token_id], logprobs, reason, num_output_tokens=position + 1)

    def _finish(self, running: _Running, output: RequestOutput) -> None:
        with self._lock:
            if self._running.pop(running.prepared.request_id, None) is None:
                return
        running.on_output(output)

    @staticmethod
    def _output(running: _Running, outputs: list[SequenceOutput], finished: bool) -> RequestOutput:
        prepared = running.prepared
        return RequestOutput(
            prepared.request_id, outputs, finished, len(prepared.prompt_token_ids), timings=running.timings
        )
