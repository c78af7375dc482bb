"""Requests whose output is constrained, until their grammar is compiled. The loop's own, beside a pool of threads.

Knows nothing of steps, and of grammars only that they are compiled. Whatever the compiler does, it costs no step, and a
request waits for it no longer than `COMPILE_TIMEOUT_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from xllm_framework.constraint import Constraint, Grammar
from xllm_framework.errors import InvalidRequest, RequestFailed, XLLMError
from xllm_framework.request import FinishReason
from xllm_framework.request.messages import AddRequest, SequenceDelta, ToEngine
from xllm_runtime.master.archive_fetcher import FetchedRequest

COMPILE_TIMEOUT_S = 5.0
NUM_THREADS = 2


class Compiler(Protocol):
    """What turns constraints into grammars. Thread-safe."""

    def find(self, constraint: Constraint) -> Grammar | None:
        """Return the grammar if it is at hand; at once."""

    def compile(self, constraint: Constraint) -> Grammar:
        """Return the grammar; may take long. Raises `InvalidRequest`."""


@dataclass(frozen=True, slots=True)
class CompiledRequest:
    """What the pool puts into the loop's inbox, perhaps twice for one request: the first counts."""

    message: AddRequest
    grammar: Grammar | None = None
    error: XLLMError | None = None
    """Why there is no grammar."""


LoopMessage = ToEngine | CompiledRequest | FetchedRequest
"""What a loop's inbox holds."""


class ConstrainedRequests:
    """Used by the loop's thread.

    Args:
        put: takes results into the loop's inbox; from any thread.
    """

    def __init__(self, compiler: Compiler, put: Callable[[CompiledRequest], None]) -> None:
        self._compiler = compiler
        self._put = put
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="xllm-grammar")
        self._pending: dict[str, tuple[AddRequest, set[int]]] = {}
        """By request id, with the sequences that were aborted meanwhile."""

    def find(self, message: AddRequest) -> Grammar | None:
        """Return the grammar of a new request, or None and begin to compile it: a `CompiledRequest` follows."""
        constraint = message.sampling.constraint
        assert constraint is not None, "only constrained requests come here"
        grammar = self._compiler.find(constraint)
        if grammar is None:
            self._pending[message.request_id] = (message, set())
            timer = threading.Timer(COMPILE_TIMEOUT_S, self._give_up, (message, constraint))
            timer.daemon = True
            timer.start()
            self._pool.submit(self._compile, message, constraint, timer)
        return grammar

    def take(self, compiled: CompiledRequest) -> set[int] | None:
        """Return the sequences of a request that were aborted while it waited; None if it does not wait any more."""
        message, aborted = self._pending.get(compiled.message.request_id, (None, set()))
        if message is not compiled.message:
            return None
        del self._pending[compiled.message.request_id]
        return aborted

    def abort(self, targets: list[str | tuple[str, int]]) -> list[SequenceDelta]:
        """Give up requests that wait; others are ignored. Returns their last deltas.

        Single sequences of one end with the rest of it, or once it is added: see `take`.
        """
        deltas: list[SequenceDelta] = []
        for target in targets if self._pending else ():
            request_id, index = (target, None) if isinstance(target, str) else target
            if request_id not in self._pending:
                continue
            message, aborted = self._pending[request_id]
            indices = range(message.sampling.num_sequences)
            aborted.update(indices if index is None else [index])
            if aborted.issuperset(indices):
                del self._pending[request_id]
                deltas += [SequenceDelta(request_id, number, [], FinishReason.ABORT) for number in indices]
        return deltas

    def close(self) -> None:
        """Begin no more; what is being compiled is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, message: AddRequest, constraint: Constraint, timer: threading.Timer) -> None:
        try:
            compiled = CompiledRequest(message, self._compiler.compile(constraint))
        except XLLMError as error:
            compiled = CompiledRequest(message, error=error)
        except Exception as error:  # whatever a library raises is this request's failure
            failure = RequestFailed(f"The constraint cannot be compiled: {type(error).__name__}: {error}")
            compiled = CompiledRequest(message, error=failure)
        timer.cancel()
        self._put(compiled)

    def _give_up(self, message: AddRequest, constraint: Constraint) -> None:
        why = f"{constraint.param} took longer than {COMPILE_TIMEOUT_S:g} s to compile."
        self._put(CompiledRequest(message, error=InvalidRequest(why, constraint.param)))


class Unconstrained:
    """A compiler for engines whose model cannot be constrained."""

    def find(self, constraint: Constraint) -> Grammar | None:
        """See `Compiler.find`."""
        return None

    def compile(self, constraint: Constraint) -> Grammar:
        """See `Compiler.compile`."""
        raise InvalidRequest(f"{constraint.param} is not supported by this engine.", constraint.param)
