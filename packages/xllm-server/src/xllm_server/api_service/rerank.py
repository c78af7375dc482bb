"""Reranking: the documents that fit a query best. Knows nothing of how a pair is scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_runtime.master.scoring import Scorer
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pooling_rendering import WholeRendering, pooling_usage
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.protocol.pooling import Document, Reranking, RerankRequest, RerankResult


class RerankService(GenerationService[RerankRequest]):
    """Serves /v1/rerank."""

    body_type = RerankRequest
    id_prefix = "rerank-"

    def check(self, body: RerankRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        master = self._state.master
        limit = body.truncate_to(master.ready.max_model_len)

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            return master.scorer.prepare(body.pairs(), truncate_to=limit, **body.options(request_id))

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: RerankRequest, answer_id: str, generation: Generation) -> RerankRendering:
        master = self._state.master
        return RerankRendering(body, answer_id, master.model_name, master.scorer)


class RerankRendering(WholeRendering):
    """JSON of one answer."""

    def __init__(self, body: RerankRequest, answer_id: str, model: str, scorer: Scorer) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._scorer = scorer

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the answer; equal scores keep the documents' order."""
        texts = self._body.texts()
        scores = self._scorer.scores(self._body.pairs(), results)
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._body.top_n]
        has_texts = self._body.return_documents is not False
        return Reranking(
            id=self._id,
            model=self._model,
            usage=pooling_usage(generation),
            results=[
                RerankResult(index, scores[index], Document(texts[index]) if has_texts else None) for index in ranked
            ],
        )
