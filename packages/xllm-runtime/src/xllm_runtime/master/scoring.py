"""How well two texts belong together: by the angle between their embeddings, or by a reranker's judgement of the pair.

A scorer turns pairs into requests, and the requests' outputs into one number a pair. Knows nothing of JSON shapes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol, Unpack

import numpy as np

from xllm_framework.config import ModelConfig
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.model import ModelArgs
from xllm_framework.request import RequestOutput
from xllm_framework.request.pooling_params import PoolingParams
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.pooling_requests import PoolingRequests, normalized, pooled_vector
from xllm_runtime.master.prepared_request import PreparedRequest, RequestOptions
from xllm_runtime.master.request_factory import RequestFactory
from xllm_runtime.master.reranker_prompt import RerankerPrompt
from xllm_runtime.master.tasks import TOWER_ALONE

Pair = tuple[str, str]
"""(query, document), or two texts of equal rank."""

logger = logging.getLogger(__name__)


class Scorer(Protocol):
    """Scores pairs with one model. Thread-safe; keeps nothing of a call."""

    def prepare(
        self, pairs: Sequence[Pair], *, truncate_to: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[PreparedRequest]:
        """Return the requests that pairs need; tokenises.

        Raises:
            InvalidRequest, RequestTooLong: they cannot be scored.
        """

    def scores(self, pairs: Sequence[Pair], outputs: Sequence[RequestOutput]) -> list[float]:
        """Return one score a pair, from the finished outputs of the prepared requests, in their order."""


class CosineScorer:
    """The cosine of the angle between two embeddings, from -1 to 1. Equal texts are computed once."""

    def __init__(self, pooling: PoolingRequests) -> None:
        self._pooling = pooling

    def prepare(
        self, pairs: Sequence[Pair], *, truncate_to: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[PreparedRequest]:
        """See `Scorer.prepare`."""
        return [self._pooling.prepare(text, truncate_to=truncate_to, **options) for text in _distinct(pairs)]

    def scores(self, pairs: Sequence[Pair], outputs: Sequence[RequestOutput]) -> list[float]:
        """See `Scorer.scores`."""
        vectors = [normalized(pooled_vector(output)) for output in outputs]
        vector_of = dict(zip(_distinct(pairs), vectors, strict=True))
        return [float(np.dot(vector_of[first], vector_of[second])) for first, second in pairs]


class HeadScorer:
    """A probability from the head's outputs behind the pair's prompt: of the second of two, or of the only one.

    Args:
        to_prompt: makes the prompt of a pair, given how many tokens it may have (None: no matter how many).
    """

    def __init__(
        self,
        factory: RequestFactory,
        to_prompt: Callable[[Pair, int | None], str | list[int]],
        logit_ids: tuple[int] | tuple[int, int],
    ) -> None:
        self._factory = factory
        self._to_prompt = to_prompt
        self._params = PoolingParams("last", logit_ids)

    def prepare(
        self, pairs: Sequence[Pair], *, truncate_to: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[PreparedRequest]:
        """See `Scorer.prepare`."""
        prepared = []
        for pair in pairs:
            prompt = self._to_prompt(pair, truncate_to)
            limit = truncate_to if isinstance(prompt, str) else None
            prepared.append(
                self._factory.from_pooling(prompt, self._params, param="documents", truncate_to=limit, **options)
            )
        return prepared

    def scores(self, pairs: Sequence[Pair], outputs: Sequence[RequestOutput]) -> list[float]:
        """See `Scorer.scores`."""
        logits = [pooled_vector(output).astype(np.float64) for output in outputs]
        return [_sigmoid(float(values[-1] - (values[0] if len(values) > 1 else 0.0))) for values in logits]


class NoScorer:
    """Refuses, and says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def prepare(
        self, pairs: Sequence[Pair], *, truncate_to: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[PreparedRequest]:
        """Raise `InvalidRequest`."""
        raise InvalidRequest(self._reason, "model")

    def scores(self, pairs: Sequence[Pair], outputs: Sequence[RequestOutput]) -> list[float]:
        """Raise `InvalidRequest`."""
        raise InvalidRequest(self._reason, "model")


def select_scorer(
    config: ModelConfig,
    name: str,
    args: ModelArgs,
    tokenizer: Tokenizer,
    factory: RequestFactory,
    pooling: PoolingRequests,
) -> Scorer:
    """Return how the model called `name` scores: `config.scoring`, or what its files and name tell.

    Raises:
        InvalidConfig: `scoring` is yes_no and the model cannot answer so.
    """
    if config.task == "mm_embed":
        return NoScorer(TOWER_ALONE)
    if args.head == "classifier":
        if args.num_labels != 1:
            return NoScorer(f"This model has {args.num_labels} labels; one that scores pairs has 1.")
        return HeadScorer(factory, _classifier_prompt(args, tokenizer), (0,))
    answers = _yes_no_ids(tokenizer) if args.head == "language" else None
    if config.scoring == "yes_no" and answers is None:
        raise InvalidConfig("scoring is yes_no, but the model has no head with the tokens yes and no.")
    if answers is not None and (
        config.scoring == "yes_no" or (config.scoring == "auto" and "reranker" in name.lower())
    ):
        logger.info("Pairs are scored by the answers yes and no (scoring).")
        return HeadScorer(factory, RerankerPrompt(tokenizer), answers)
    return CosineScorer(pooling)


def _classifier_prompt(args: ModelArgs, tokenizer: Tokenizer) -> Callable[[Pair, int | None], str | list[int]]:
    """Return what makes a classifier's prompts: Qwen3's are made of Qwen3-Reranker, and know its prompt; others get the texts."""
    if args.model_type == "qwen3":
        return RerankerPrompt(tokenizer)
    return lambda pair, _: pair[0] + pair[1]


def _yes_no_ids(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Return the tokens of "no" and "yes"; None where either is not one token."""
    no, yes = (tokenizer.encode(text, add_special_tokens=False) for text in ("no", "yes"))
    return (no[0], yes[0]) if len(no) == len(yes) == 1 else None


def _distinct(pairs: Sequence[Pair]) -> list[str]:
    return list(dict.fromkeys(text for pair in pairs for text in pair))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
