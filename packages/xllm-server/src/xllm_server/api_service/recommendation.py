"""Recommendations: histories in, paths and their items out, as JSON or msgpack. Knows nothing of searches.

admit -> read -> decode and check -> prepare (thread pool) -> submit -> answer
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from xllm_framework.errors import InvalidRequest
from xllm_framework.request.rec_messages import FoundPath
from xllm_runtime.master import ChatInput, PreparedRequest
from xllm_runtime.master.rec import RecMaster
from xllm_runtime.master.rec_dispatcher import SearchOutput
from xllm_runtime.master.rec_request import PreparedSearch
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.service import CLIENT_LEFT
from xllm_server.limits import read_body
from xllm_server.protocol.decode import check_content_type, convert_request, decode_request
from xllm_server.protocol.recommendation import (
    ChatRecommendationRequest,
    Recommendation,
    RecommendationChoice,
    RecommendationFields,
    RecommendationRequest,
    TensorBody,
    array_tensor,
    input_tensors,
)
from xllm_server.request_deadline import shorten_timeout
from xllm_server.state import ServerState

MSGPACK = "application/msgpack"
BodyT = TypeVar("BodyT", bound=RecommendationFields)
Prepare = Callable[[], Sequence[PreparedSearch]]


class RecommendationService:
    """Serves /v1/completions and /v1/chat/completions of the rec backend."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._master = cast("RecMaster", state.master)

    async def complete(self, http: Request) -> Response:
        """Search the histories of a `RecommendationRequest`.

        Raises:
            XLLMError: it is refused, or a search failed.
        """
        body = await self._read(http, RecommendationRequest)
        prompts, tensors = body.prompts(), input_tensors(body.tensors)
        params = self._master.search_params(**body.search())
        request_id = self._request_id(http, body)

        def prepare() -> list[PreparedSearch]:
            return [
                self._master.prepare_search(
                    prompt,
                    params,
                    add_special_tokens=body.add_special_tokens is not False,
                    seed=body.seed,
                    tensors=tensors,
                    **body.options(request_id),
                )
                for prompt in prompts
            ]

        outputs, generation = await self._search(http, prepare)
        choices = [
            self._choice(output, index, text=sequence.text)
            for output in outputs
            for index, sequence in enumerate(output.outputs)
        ]
        return self._answer(http, f"cmpl-{request_id}", "text_completion", choices, outputs, generation, body.logprobs)

    async def chat(self, http: Request) -> Response:
        """Search the history that a `ChatRecommendationRequest` tells; raises as `complete` does."""
        body = await self._read(http, ChatRecommendationRequest)
        params = self._master.search_params(**body.search())
        request_id = self._request_id(http, body)
        chat = ChatInput(messages=body.messages, template_kwargs=body.chat_template_kwargs or {})

        def prepare() -> list[PreparedSearch]:
            return [self._master.prepare_chat_search(chat, params, seed=body.seed, **body.options(request_id))]

        outputs, generation = await self._search(http, prepare)
        choices = [
            self._choice(output, index, message={"role": "assistant", "content": sequence.text})
            for output in outputs
            for index, sequence in enumerate(output.outputs)
        ]
        answer_id = f"chatcmpl-{request_id}"
        return self._answer(http, answer_id, "chat.completion", choices, outputs, generation, body.logprobs)

    async def _read(self, http: Request, body_type: type[BodyT]) -> BodyT:
        content = await read_body(http, self._state.config.max_body_bytes)
        if _media_type(http, "content-type") == MSGPACK:
            body = convert_request(_unpacked(content), body_type)
        else:
            check_content_type(http.headers.get("content-type"))
            body = decode_request(content, body_type)
        self._state.check_model(body.model)
        shorten_timeout(body, http.headers)
        body.check_search()
        return body

    async def _search(self, http: Request, prepare: Prepare) -> tuple[list[SearchOutput], Generation]:
        """Return the outputs of all prompts; none when the client has left."""
        generation = Generation(self._state, http)
        try:
            await generation.start(cast("Callable[[], Sequence[PreparedRequest]]", prepare), is_streamed=False)
            results = await generation.results()
        finally:
            generation.close()
        return cast("list[SearchOutput]", results), generation

    @staticmethod
    def _choice(output: SearchOutput, index: int, **content: Any) -> RecommendationChoice:
        path = output.paths[index]
        return RecommendationChoice(
            index,
            token_ids=path.token_ids,
            score=path.score,
            item_ids=path.item_ids,
            document_ids=path.document_ids,
            item_types=path.kinds,
            **content,
        )

    def _answer(
        self,
        http: Request,
        answer_id: str,
        kind: Any,
        choices: list[RecommendationChoice],
        outputs: list[SearchOutput],
        generation: Generation,
        logprobs: int | bool | None,
    ) -> Response:
        if not outputs:
            return Response(status_code=CLIENT_LEFT)
        paths = [path for output in outputs for path in output.paths]
        has_logprobs = logprobs is not None and logprobs is not False
        for index, (choice, path) in enumerate(zip(choices, paths, strict=True)):
            choice.index = index
            if has_logprobs or self._master.config.rec.output_rec_logprobs:
                choice.logprobs = {"token_logprobs": path.logprobs}
        answer = Recommendation(
            id=answer_id,
            object=kind,
            created=int(time.time()),
            model=self._master.model_name,
            choices=choices,
            usage=generation.usage,
            output_tensors=self._tensors(paths),
            catalogue_version=max(output.catalogue_version for output in outputs),
        )
        if _media_type(http, "accept") == MSGPACK:
            return Response(msgspec.msgpack.encode(answer), media_type=MSGPACK)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def _tensors(self, paths: list[FoundPath]) -> list[TensorBody]:
        """Return what answers bring as tensors, over all paths in their order."""
        rec = self._master.config.rec
        if any(path.item_ids for path in paths):
            tensors = [
                array_tensor("rec_result", np.array([item for path in paths for item in path.item_ids], np.int64))
            ]
            for name, texts in (
                ("item_did", [text for path in paths for text in path.document_ids]),
                ("item_type", [text for path in paths for text in path.kinds]),
            ):
                if texts:
                    tensors.append(TensorBody(name, "BYTES", [len(texts)], texts))
        else:
            tensors = [array_tensor("rec_result", np.array([path.token_ids for path in paths], np.int32))]
        if rec.enable_output_sku_logprobs:
            tensors.append(array_tensor("sku_logprobs", np.array([path.logprobs for path in paths], np.float32)))
        return tensors

    @staticmethod
    def _request_id(http: Request, body: RecommendationFields) -> str:
        if body.request_id is not None and not http.state.has_request_id:
            http.state.request_id = body.request_id
        request_id: str = http.state.request_id
        return request_id


async def in_threads(state: ServerState, call: Callable[[], Any]) -> Any:
    """Run a blocking call beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(state.executor, call)


def _media_type(http: Request, header: str) -> str:
    return (http.headers.get(header) or "").split(";")[0].strip().lower()


def _unpacked(content: bytes) -> dict[str, Any]:
    try:
        body = msgspec.msgpack.decode(content)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid msgpack: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a map.")
    return body
