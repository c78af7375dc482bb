"""Embeddings: a vector for each input. Knows nothing of how vectors are computed, only how they are written."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_runtime.master.pooling_requests import PoolingRequests, Vector
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pooling_rendering import WholeRendering, pooling_usage
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.protocol.pooling import Embedding, EmbeddingList, EmbeddingRequest


class EmbeddingService(GenerationService[EmbeddingRequest]):
    """Serves /v1/embeddings."""

    body_type = EmbeddingRequest
    id_prefix = "embd-"

    def check(self, body: EmbeddingRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        master = self._state.master
        master.pooling.check_dimensions(body.dimensions)
        limit = body.truncate_to(master.ready.max_model_len)

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            options = body.options(request_id)
            return [master.pooling.prepare(item, truncate_to=limit, **options) for item in body.inputs()]

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: EmbeddingRequest, answer_id: str, generation: Generation) -> EmbeddingRendering:
        master = self._state.master
        return EmbeddingRendering(body, answer_id, master.model_name, master.pooling)


class EmbeddingRendering(WholeRendering):
    """JSON of one answer."""

    def __init__(self, body: EmbeddingRequest, answer_id: str, model: str, pooling: PoolingRequests) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._pooling = pooling

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the answer."""
        vectors = [self._pooling.vector(result, self._body.dimensions) for result in results]
        return EmbeddingList(
            id=self._id,
            created=int(time.time()),
            model=self._model,
            data=[Embedding(index, self._written(vector)) for index, vector in enumerate(vectors)],
            usage=pooling_usage(generation),
        )

    def _written(self, vector: Vector) -> list[float] | str:
        if self._body.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        numbers: list[float] = vector.tolist()
        return numbers
