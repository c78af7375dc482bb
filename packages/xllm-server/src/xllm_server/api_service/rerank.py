"""Reranking: the documents that fit a query best. Knows nothing of how a pair is scored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pair_scoring import PairScoringService
from xllm_server.api_service.pooling_rendering import pooling_usage
from xllm_server.protocol.pooling import Document, Reranking, RerankRequest, RerankResult


class RerankService(PairScoringService[RerankRequest]):
    """Serves /v1/rerank."""

    body_type = RerankRequest
    id_prefix = "rerank-"

    def shape(
        self, body: RerankRequest, answer_id: str, scores: Sequence[float], generation: Generation
    ) -> msgspec.Struct:
        """Return the answer; equal scores keep the documents' order."""
        texts = body.texts()
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        has_texts = body.return_documents is not False
        return Reranking(
            id=answer_id,
            model=self._state.master.model_name,
            usage=pooling_usage(generation),
            results=[
                RerankResult(index, scores[index], Document(texts[index]) if has_texts else None) for index in ranked
            ],
        )
