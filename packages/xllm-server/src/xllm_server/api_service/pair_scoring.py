"""Scores of pairs of texts, whatever an answer makes of them. Knows nothing of how a pair is scored, or of JSON shapes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.pooling_rendering import WholeRendering
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.protocol.pooling import RerankRequest, ScoreRequest

PairsT = TypeVar("PairsT", RerankRequest, ScoreRequest)


class Shape(Protocol):
    """Makes the body of an answer."""

    def __call__(self, scores: Sequence[float], generation: Generation) -> msgspec.Struct:
        """Return it; `scores` are in the order of the pairs."""


class PairScoringService(GenerationService[PairsT]):
    """Scores the pairs of a body; a subclass shapes the answer."""

    @abstractmethod
    def shape(self, body: PairsT, answer_id: str, scores: Sequence[float], generation: Generation) -> msgspec.Struct:
        """Return the body of the answer; `scores` are in the order of the pairs."""

    def check(self, body: PairsT) -> CheckedRequest:
        """See `GenerationService.check`."""
        body.check()
        master = self._state.master
        limit = body.truncate_to(master.ready.max_model_len)

        def prepare(request_id: str) -> Sequence[PreparedRequest]:
            return master.scorer.prepare(body.pairs(), truncate_to=limit, **body.options(request_id))

        def render(answer_id: str, generation: Generation) -> _Rendering:
            score = partial(master.scorer.scores, body.pairs())
            return _Rendering(score, partial(self.shape, body, answer_id))

        return CheckedRequest(prepare, render)


class _Rendering(WholeRendering):
    def __init__(self, score: Callable[[Sequence[RequestOutput]], Sequence[float]], shape: Shape) -> None:
        self._score = score
        self._shape = shape

    def whole(self, results: Sequence[RequestOutput], generation: Generation) -> msgspec.Struct:
        return self._shape(self._score(results), generation)
