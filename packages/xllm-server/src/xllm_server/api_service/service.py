"""The steps that all generating requests share, from the HTTP request to the response. Knows no JSON shapes.

    admit -> read -> decode and check -> prepare (thread pool) -> submit -> first output -> answer

Every error up to the first output is a JSON answer with a status of its own; later ones, in a stream, are an event.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from xllm_framework.errors import XLLMError
from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.output_bridge import PromptOutput
from xllm_server.errors import ServerFault
from xllm_server.limits import read_body
from xllm_server.protocol.decode import check_content_type, decode_request
from xllm_server.protocol.engine_request import EngineRequest
from xllm_server.request_deadline import shorten_timeout
from xllm_server.sse import EventStream
from xllm_server.state import ServerState

LARGE_BODY_BYTES = 32 * 1024
"""Bodies above this are parsed in the thread pool."""
LARGE_ANSWER_TOKENS = 2048
"""Whole answers of more tokens, or numbers of vectors, are rendered in the thread pool."""
CLIENT_LEFT = 499
"""Status of an answer that nobody reads; the log and the metrics see it."""

BodyT = TypeVar("BodyT", bound=EngineRequest)
logger = logging.getLogger(__name__)


class Rendering(Protocol):
    """The JSON of one answer: `encode`, `end` and `failure` for a stream, `whole` for the rest."""

    def encode(self, outputs: Sequence[PromptOutput]) -> bytes:
        """Return the events of what came since the last call; may be empty."""

    def end(self, generation: Generation) -> bytes:
        """Return the events after the last output."""

    def failure(self, error: XLLMError) -> bytes:
        """Return the event that ends a stream which failed."""

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the body of an answer that is not streamed."""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """What a request comes to; both calls share what the check worked out, so nothing is looked up a second time."""

    prepare: Callable[[str], Sequence[PreparedRequest]]
    """Prepares the prompts, given the request's id: applies templates and tokenises, so it blocks."""
    render: Callable[[str, Generation], Rendering]
    """Returns what renders the answer, given the answer's id."""


class GenerationService(ABC, Generic[BodyT]):
    """See the module; a subclass says what its bodies mean."""

    body_type: type[BodyT]
    id_prefix: str

    def __init__(self, state: ServerState) -> None:
        self._state = state

    @abstractmethod
    def check(self, body: BodyT) -> CheckedRequest:
        """Check `body` and return what it comes to.

        Raises:
            XLLMError: it is refused.
        """

    async def respond(self, http: Request) -> Response:
        """Serve one request.

        Raises:
            XLLMError: it is refused, or failed before anything was sent.
        """
        generation = Generation(self._state, http)
        try:
            body = await read_request(self._state, http, self.body_type)
            checked = self.check(body)
            request_id = self._request_id(http, body)
            await generation.start(lambda: checked.prepare(request_id), is_streamed=bool(body.stream))
            await generation.wait_first()
            rendering = checked.render(f"{self.id_prefix}{request_id}", generation)
            if body.stream:
                return EventStream(_events(generation, rendering), generation.close)
            results = await generation.results()
            if not results:
                response = Response(status_code=CLIENT_LEFT)
            else:
                response = Response(await self._whole(rendering, results, generation), media_type="application/json")
        except BaseException:
            generation.close()
            raise
        generation.close()
        return response

    async def _whole(self, rendering: Rendering, results: Sequence[RequestOutput], generation: Generation) -> bytes:
        """Return the body of an answer that is not streamed; a long one is parsed and encoded in the thread pool."""

        def encode() -> bytes:
            return msgspec.json.encode(rendering.whole(results, generation))

        if sum(_size(result) for result in results) < LARGE_ANSWER_TOKENS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._state.executor, encode)

    @staticmethod
    def _request_id(http: Request, body: EngineRequest) -> str:
        """Return the id that answers and logs carry: the header's, else the body's, else a fresh one."""
        if body.request_id is not None and not http.state.has_request_id:
            http.state.request_id = body.request_id
        request_id: str = http.state.request_id
        return request_id


async def read_request(state: ServerState, http: Request, body_type: type[BodyT]) -> BodyT:
    """Read and decode a body, check the model that it names, and take the headers into account.

    Raises:
        XLLMError: it is refused.
    """
    check_content_type(http.headers.get("content-type"))
    content = await read_body(http, state.config.max_body_bytes)
    if len(content) > LARGE_BODY_BYTES:
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(state.executor, decode_request, content, body_type)
    else:
        body = decode_request(content, body_type)
    state.check_model(body.model)
    shorten_timeout(body, http.headers)
    return body


def _size(result: RequestOutput) -> int:
    """Return how many tokens and numbers of vectors a result has."""
    vectors = [output.pooled for output in result.outputs if output.pooled is not None]
    return result.num_output_tokens + sum(map(len, vectors))


async def _events(generation: Generation, rendering: Rendering) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream; an error becomes the last one."""
    try:
        while True:
            outputs = await generation.next()
            if not outputs:
                return
            events = rendering.encode(outputs)
            if generation.is_finished:
                yield events + rendering.end(generation)
                return
            if events:
                yield events
    except XLLMError as error:
        yield rendering.failure(error)
    except Exception:
        logger.exception("A stream failed.")
        yield rendering.failure(ServerFault("The server failed to render this answer; its log says why."))
