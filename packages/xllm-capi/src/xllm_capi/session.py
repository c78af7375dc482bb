"""Serves one host over one connection: its requests in, their outputs back. Knows nothing of how the model was loaded.

Two threads a session. The reader takes messages, prepares requests and submits them; only texts long enough to delay other
messages, and chats that may bring pictures, go to a pool. Outputs of a few requests are sent by the thread that brings
them, without waiting: a token has one thread less to cross, and where a step brings few, the thread that brings them is the
one that has computed them. Those of many requests, and of a host that reads slowly, go through a queue to the writer, which
sends everything of one wake-up in one message and delays nobody by waiting.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from xllm_capi.connection import Connection
from xllm_capi.generation import prepare
from xllm_capi.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    Outputs,
    Paths,
    Pool,
    Ready,
    Search,
    Shutdown,
    Stats,
    StatsReply,
    ToHost,
    Vectors,
)
from xllm_capi.pooling import PoolingCall
from xllm_capi.searching import SearchCall, refuse_recommender
from xllm_capi.tool_chats import AnswerReaders, load_tool_chats
from xllm_framework.errors import XLLMError
from xllm_framework.request import FinishReason, RequestOutput

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster, PreparedRequest

logger = logging.getLogger(__name__)
MAX_INLINE_LENGTH = 8192
"""Characters of text that the reader tokenises itself: a fraction of a millisecond."""

MAX_DIRECT_REQUESTS = 4
"""Requests in flight up to which outputs are sent at once; beyond, messages are fewer when a step's outputs share one."""

_Item = tuple[int, RequestOutput, AnswerReaders | None] | Finished | ToHost | None


class _InFlight:
    """A request between its `Generate` and its end. It may be cancelled while another thread prepares it."""

    __slots__ = ("_is_cancelled", "prepared", "readers")

    def __init__(self) -> None:
        self.prepared: PreparedRequest | None = None
        self.readers: AnswerReaders | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Give it up."""
        self._is_cancelled = True

    def is_cancelled(self) -> bool:
        """Whether it was given up."""
        return self._is_cancelled


class Session:
    """One host's requests. `run` serves until the host leaves; whoever learns that the engine has failed calls `fail`."""

    def __init__(self, connection: Connection, master: LLMMaster, pool: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._master = master
        self._pool = pool
        self._in_flight: dict[int, _InFlight] = {}
        self._calls: dict[int, PoolingCall | SearchCall] = {}
        self._load_tools = cache(partial(load_tool_chats, master))
        self._outgoing: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._num_queued = 0
        """Outputs put into the queue; changed inside `_on_output` alone."""
        self._num_written = 0
        """Outputs that the writer has sent; changed by the writer alone."""
        self._writer = threading.Thread(target=self._write, name="xllm-capi-writer", daemon=True)

    def run(self) -> None:
        """Serve; on return every request of this host is cancelled."""
        self._writer.start()
        self._outgoing.put(ready_message(self._master))
        try:
            self._read()
        except msgspec.DecodeError as error:
            logger.error("The host sent a message that cannot be read: %s", error)
        finally:
            self._cancel([*self._in_flight, *self._calls])
            self._outgoing.put(None)
            self._writer.join()
            self._connection.close()

    def fail(self, reason: str) -> None:
        """Tell the host that the engine has ended, and end the session. Any thread."""
        self._outgoing.put(Failed("engine_dead", reason))
        self._outgoing.put(None)

    def _read(self) -> None:
        while (message := self._connection.receive()) is not None:
            if isinstance(message, Generate):
                self._accept(message)
            elif isinstance(message, Pool):
                self._run_call(message.id, PoolingCall(self._master, message, self._answer))
            elif isinstance(message, Search):
                self._run_call(message.id, SearchCall(self._master, message, self._answer))
            elif isinstance(message, Cancel):
                self._cancel(message.ids)
            elif isinstance(message, Stats):
                self._outgoing.put(StatsReply(message.id, self._master.stats))
            elif isinstance(message, Shutdown):
                return

    def _accept(self, message: Generate) -> None:
        in_flight = self._in_flight[message.id] = _InFlight()
        length = len(message.prompt or "") + len(message.messages_json or "") + len(message.tools_json or "")
        length += sum(len(content) for _, content in message.messages or ())
        # A short message of such a model may name a picture that is far away.
        may_fetch = message.messages_json is not None and self._master.backend == "vlm"
        if length <= MAX_INLINE_LENGTH and not may_fetch:
            self._start(message, in_flight)
        else:
            self._pool.submit(self._start, message, in_flight)

    def _run_call(self, call_id: int, call: PoolingCall | SearchCall) -> None:
        self._calls[call_id] = call
        self._pool.submit(call.run)

    def _answer(self, answer: Vectors | Paths) -> None:
        self._calls.pop(answer.id, None)
        self._outgoing.put(answer)

    def _start(self, message: Generate, in_flight: _InFlight) -> None:
        if in_flight.is_cancelled():
            self._in_flight.pop(message.id, None)
            return
        try:
            refuse_recommender(self._master)
            prepared, readers = prepare(self._master, message, self._load_tools)
            in_flight.prepared, in_flight.readers = prepared, readers
            self._master.submit(prepared, partial(self._on_output, message.id, readers))
        except XLLMError as error:
            self._refuse(message.id, error.kind, error.message)
        except Exception as error:  # one request fails alone; the session goes on
            logger.exception("A request could not be prepared.")
            self._refuse(message.id, "internal", f"The engine could not prepare the request: {error}")
        else:
            # A cancel that came between the check above and `submit` has found nothing to cancel.
            if in_flight.is_cancelled():
                self._master.cancel(prepared.request_id)

    def _refuse(self, request_id: int, kind: str, message: str) -> None:
        self._in_flight.pop(request_id, None)
        self._outgoing.put(Finished(request_id, kind, message, 0, 0))

    def _cancel(self, ids: list[int]) -> None:
        for request_id in ids:
            if (call := self._calls.get(request_id)) is not None:
                call.cancel()
            in_flight = self._in_flight.get(request_id)
            if in_flight is None:
                continue
            in_flight.cancel()
            if in_flight.prepared is not None:
                self._master.cancel(in_flight.prepared.request_id)

    def _on_output(self, request_id: int, readers: AnswerReaders | None, output: RequestOutput) -> None:
        """Take news, from one thread at a time; never wait, for the thread may be the one that computes steps."""
        if output.finished:
            self._in_flight.pop(request_id, None)
        # Behind what is queued already: a request's outputs stay in order.
        if len(self._in_flight) < MAX_DIRECT_REQUESTS and self._num_queued == self._num_written:
            outputs = Outputs([], [])
            _collect(request_id, output, readers, outputs.deltas, outputs.finished)
            if self._connection.offer(outputs):
                if self._connection.has_unsent:
                    self._outgoing.put(Outputs([], []))  # has the writer send the rest
                return
        self._num_queued += 1
        self._outgoing.put((request_id, output, readers))

    def _write(self) -> None:
        is_open = True
        while is_open:
            items = [self._outgoing.get()]
            while not self._outgoing.empty():
                items.append(self._outgoing.get())
            is_open = self._send_all(items)
            self._num_written += sum(isinstance(item, tuple) for item in items)
        self._connection.shut_down()

    def _send_all(self, items: list[_Item]) -> bool:
        """Send items in order, neighbouring outputs as one message; False after the last one or a broken connection."""
        deltas: list[Delta] = []
        finished: list[Finished] = []

        def flush() -> bool:
            nonlocal deltas, finished
            outputs, deltas, finished = Outputs(deltas, finished), [], []
            return not (outputs.deltas or outputs.finished) or self._connection.send(outputs)

        for item in items:
            if isinstance(item, tuple):
                _collect(*item, deltas, finished)
            elif isinstance(item, Finished):
                finished.append(item)
            elif item is None:
                flush()
                return False
            elif not (flush() and self._connection.send(item)):
                return False
        return flush()


def ready_message(master: LLMMaster) -> Ready:
    """Describe what `master` has loaded."""
    ready = master.ready
    return Ready(
        PROTOCOL_VERSION,
        master.model_name,
        ready.model_impl,
        ready.device,
        ready.dtype,
        ready.max_model_len,
        ready.vocab_size,
        ready.num_blocks,
        ready.block_size,
        os.getpid(),
    )


def _collect(
    request_id: int,
    output: RequestOutput,
    readers: AnswerReaders | None,
    deltas: list[Delta],
    finished: list[Finished],
) -> None:
    """Add the wire form of `output`; in a chat with tools, of what `readers` make of it."""
    is_aborted = False
    for sequence in output.outputs:
        is_aborted |= sequence.finish_reason is FinishReason.ABORT
        text, reasoning, calls = (sequence.text, None, None) if readers is None else readers.read(sequence)
        deltas.append(
            Delta(
                request_id,
                sequence.index,
                text,
                sequence.token_ids,
                sequence.logprobs,
                sequence.finish_reason and sequence.finish_reason.value,
                None if sequence.stop_reason is None else str(sequence.stop_reason),
                reasoning,
                calls,
            )
        )
    if not output.finished:
        return
    kind, message = output.error_kind, output.error
    if message is not None:
        kind = kind or "internal"
    elif is_aborted:
        kind, message = "cancelled", "The engine has given the request up."
    finished.append(Finished(request_id, kind, message, output.num_prompt_tokens, output.num_cached_tokens))
