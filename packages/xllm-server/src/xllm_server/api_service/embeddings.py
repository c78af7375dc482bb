"""Embeddings: a vector for each input. Knows nothing of how vectors are computed, only how they are written."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from xllm_framework.errors import InvalidRequest
from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_runtime.master.media_embeddings import media_embeddings
from xllm_runtime.master.pooling_requests import PoolingRequests, Vector
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pooling_rendering import WholeRendering, pooling_usage
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.protocol.pooling import EmbeddedMedium, Embedding, EmbeddingList, EmbeddingRequest

if TYPE_CHECKING:
    from xllm_runtime.master.vlm import VLMMaster


class EmbeddingService(GenerationService[EmbeddingRequest]):
    """Serves /v1/embeddings."""

    body_type = EmbeddingRequest
    id_prefix = "embd-"

    def check(self, body: EmbeddingRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        master = self._state.master
        is_media = body.wants_media(is_loaded_for_media=master.pooling.is_for_media)
        body.check(is_media=is_media)
        master.pooling.check_dimensions(body.dimensions)
        limit = body.truncate_to(master.ready.max_model_len)

        if is_media and master.backend != "vlm":
            raise InvalidRequest("This model has no vision tower, so it does not do the task mm_embed.", "task")

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            options = body.options(request_id)
            if body.messages is not None:
                chat = body.chat()
                if is_media:
                    return [cast("VLMMaster", master).prepare_media_embedding(chat.messages, **options)]
                return [master.pooling.prepare_chat(chat, **options)]
            return [master.pooling.prepare(item, truncate_to=limit, **options) for item in body.inputs()]

        return CheckedRequest(prepare, partial(self._rendering, body, is_media))

    def _rendering(
        self, body: EmbeddingRequest, is_media: bool, answer_id: str, generation: Generation
    ) -> EmbeddingRendering:
        master = self._state.master
        return EmbeddingRendering(body, answer_id, master.model_name, master.pooling, is_media=is_media)


class EmbeddingRendering(WholeRendering):
    """JSON of one answer."""

    def __init__(
        self, body: EmbeddingRequest, answer_id: str, model: str, pooling: PoolingRequests, *, is_media: bool
    ) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._pooling = pooling
        self._is_media = is_media

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the answer."""
        if self._is_media:
            return self._list(self._media(results[0], generation), generation)
        vectors = [self._pooling.vector(result, self._body.dimensions) for result in results]
        return self._list([Embedding(index, self._written(vector)) for index, vector in enumerate(vectors)], generation)

    def _list(self, data: list[Embedding] | list[EmbeddedMedium], generation: Generation) -> EmbeddingList:
        usage = pooling_usage(generation)
        return EmbeddingList(id=self._id, created=int(time.time()), model=self._model, data=data, usage=usage)

    def _media(self, result: RequestOutput, generation: Generation) -> list[EmbeddedMedium]:
        return [
            EmbeddedMedium(
                index=index,
                kind=medium.kind,
                data=self._written(medium.values),
                shape=(medium.values.shape[0], medium.values.shape[1]),
                grid=medium.grid,
                timestamps=list(medium.timestamps),
            )
            for index, medium in enumerate(media_embeddings(generation.prepared[0], result))
        ]

    def _written(self, values: Vector) -> Any:
        """Return numbers as the request wants them: base64, or lists as deep as `values` has axes."""
        if self._body.encoding_format == "base64":
            return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
        return values.tolist()
