"""Scores of pairs of texts, as they are. Knows nothing of how a pair is scored."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pair_scoring import PairScoringService
from xllm_server.api_service.pooling_rendering import pooling_usage
from xllm_server.protocol.pooling import Score, ScoreList, ScoreRequest


class ScoreService(PairScoringService[ScoreRequest]):
    """Serves /v1/score."""

    body_type = ScoreRequest
    id_prefix = "score-"

    def shape(
        self, body: ScoreRequest, answer_id: str, scores: Sequence[float], generation: Generation
    ) -> msgspec.Struct:
        """See `PairScoringService.shape`."""
        return ScoreList(
            id=answer_id,
            created=int(time.time()),
            model=self._state.master.model_name,
            data=[Score(index, score) for index, score in enumerate(scores)],
            usage=pooling_usage(generation),
        )
