"""Scores of pairs of texts. Knows nothing of how a pair is scored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_runtime.master.scoring import Scorer
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pooling_rendering import WholeRendering, pooling_usage
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.protocol.pooling import Score, ScoreList, ScoreRequest


class ScoreService(GenerationService[ScoreRequest]):
    """Serves /v1/score."""

    body_type = ScoreRequest
    id_prefix = "score-"

    def check(self, body: ScoreRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        master = self._state.master
        limit = body.truncate_to(master.ready.max_model_len)

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            return master.scorer.prepare(body.pairs(), truncate_to=limit, **body.options(request_id))

        return CheckedRequest(prepare, partial(self._rendering, body))

    def _rendering(self, body: ScoreRequest, answer_id: str, generation: Generation) -> ScoreRendering:
        master = self._state.master
        return ScoreRendering(body, answer_id, master.model_name, master.scorer)


class ScoreRendering(WholeRendering):
    """JSON of one answer."""

    def __init__(self, body: ScoreRequest, answer_id: str, model: str, scorer: Scorer) -> None:
        self._body = body
        self._id = answer_id
        self._model = model
        self._scorer = scorer

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        """Return the answer."""
        scores = self._scorer.scores(self._body.pairs(), results)
        return ScoreList(
            id=self._id,
            created=int(time.time()),
            model=self._model,
            data=[Score(index, score) for index, score in enumerate(scores)],
            usage=pooling_usage(generation),
        )
